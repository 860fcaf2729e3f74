"""Traced kernels: when each worker of a persistent kernel ran which tile, by the device's clock, and on which
multiprocessor.

Every tile has a row of its own in the trace of a launch, so that workers need no counter to write it. The module keeps
the rows of its last launch, and knows how to write them as a Chrome trace. A module that is not traced has none of
this.
"""

from dataclasses import replace

from fusioncc.codegen.kernel import Kernel, Param, Part, part
from fusioncc.codegen.launch import Arg

IMPORTS = "import itertools\nimport json\n"
TRACE_ROWS = Param(Arg("trace_ptr", "trace"), "trace")
CLOCK = '''if triton.knobs.runtime.interpret:  # no device, no clock: ticks
    TICKS = itertools.count(1)

    def clock():
        return next(TICKS)

    def multiprocessor():
        return 0
else:
    from triton.language.extra.cuda import globaltimer as clock
    from triton.language.extra.cuda import smid as multiprocessor


@triton.jit
def record(trace_ptr, tile, worker, start):
    """Row ``tile`` of a trace: worker, multiprocessor, start and end in ns of the device's clock."""
    tl.debug_barrier()  # every thread is done with the tile
    row = trace_ptr + 4 * tile
    tl.store(row, worker)
    tl.store(row + 1, multiprocessor())
    tl.store(row + 2, start)
    tl.store(row + 3, clock())
'''
TRACES = '''TRACES = []  # the kernels of the last launch: name, tiles (role, what they make, how many), their rows


def traced(kernel, device, *tiles):
    """Memory for the rows of one kernel, int64 [tiles, 4], which ``record`` fills."""
    rows = torch.empty((sum(count for _, _, count in tiles), 4), dtype=torch.int64, device=device)
    TRACES.append((kernel, tiles, rows))
    return rows


def chrome_trace(traces):
    """``traces`` (as in TRACES) for chrome://tracing and ui.perfetto.dev: a process a kernel, a thread a worker, an
    event a tile; times in us, from the first tile on."""
    tables = [rows.tolist() for _, _, rows in traces]
    zero = min((start for table in tables for _, _, start, _ in table), default=0)
    events = []
    for pid, ((kernel, tiles, _), table) in enumerate(zip(traces, tables)):
        events.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": kernel}})
        for worker in sorted({row[0] for row in table}):
            name = {"name": f"worker {worker}"}
            events.append({"ph": "M", "name": "thread_name", "pid": pid, "tid": worker, "args": name})
        numbered = ((role, made, tile) for role, made, count in tiles for tile in range(count))
        for (role, made, tile), (worker, sm, start, end) in zip(numbered, table):
            event = {"ph": "X", "name": f"{role} {made}", "cat": role, "pid": pid, "tid": worker}
            event |= {"ts": (start - zero) / 1000, "dur": (end - start) / 1000}
            events.append(event | {"args": {"member": made, "tile": tile, "multiprocessor": sm}})
    return {"traceEvents": events, "displayTimeUnit": "ns"}
'''
SCRIPT = """    if "--trace" in sys.argv:
        path = sys.argv[sys.argv.index("--trace") + 1]
        launch(*draw(0))
        with open(path, "w") as file:
            json.dump(chrome_trace(TRACES), file)
        print(f"{NAME}: trace of {sum(len(rows) for _, _, rows in TRACES)} tiles in {path}")
"""
"""What the module's script does besides, where it is asked to."""


def traced(kernel: Kernel) -> Kernel:
    """A kernel that records its tiles, where it is persistent; one that already does, or has one program a tile, stays
    as it is."""
    if kernel.workers is None or kernel.traced:
        return kernel
    return replace(kernel, body=recorded(kernel.body, "tile", "tl.program_id(0)"), traced=kernel.grid)


def recorded(run: Part, row: str, worker: str, within: str = "") -> Part:
    """``run``, which runs one tile, with its record; ``row``, ``worker`` and ``within`` (whether there is a tile,
    where that is asked) are source."""
    record = part(f"record(trace_ptr, {row}, {worker}, start)", params=(TRACE_ROWS,))
    if within:
        record = part(f"if {within}:") + record.indented()
    return part("start = clock()") + run + record
