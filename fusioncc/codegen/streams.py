"""Schedule ``streams``: the products that read X on parallel CUDA streams, their low-rank parts added behind the join.

Main products are vendor GEMMs: the first on the current stream, each other one on a side stream. The down kernel has a
side stream too. Main members with a branch leave their product in fp32, and one kernel on the current stream adds
``scale * y @ B`` and rounds once. Members without a branch are done at the join.

Each side may be held to some multiprocessors: the down kernel by a persistent grid of that many programs (the workers
of its pool), the vendor's products by a partition of the driver's, whose streams are side streams like others.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fusioncc.codegen.bundle import bundle
from fusioncc.codegen.context import Context
from fusioncc.codegen.kernel import Kernel
from fusioncc.codegen.lines import call, indented, paragraph
from fusioncc.codegen.pool_rules import require_downs_before, require_roles
from fusioncc.codegen.side_by_side import up_main
from fusioncc.codegen.split import down_kernel
from fusioncc.errors import EmissionError
from fusioncc.schedule import Schedule
from fusioncc.vendor import refusal

FORK = '''SIDES = {}  # side streams of each stream that forked, made once


@contextlib.contextmanager
def forked(device, count):
    """``count`` side streams behind all that the current stream has been given so far; it waits for them in the end,
    also when a launch fails. A CPU has none: what is launched runs in order."""
    if device.type != "cuda":
        yield [None] * count
        return
    current = torch.cuda.current_stream(device)
    streams = SIDES.setdefault(current, [])
    streams += [torch.cuda.Stream(device) for _ in range(count - len(streams))]
    sides, fork = streams[:count], current.record_event()
    for side in sides:
        side.wait_event(fork)
    try:
        yield sides
    finally:
        for side in sides:
            current.wait_event(side.record_event())


@contextlib.contextmanager
def on(side, *tensors):
    """What is launched inside runs on ``side``, and the allocator knows that it uses ``tensors`` there.

    In a captured graph the join alone orders their reuse: a recorded tensor would hold its memory until the end of the
    capture.
    """
    if side is None:
        yield
        return
    if not torch.cuda.is_current_stream_capturing():
        for tensor in tensors:
            tensor.record_stream(side)
    with torch.cuda.stream(side):
        yield
'''
NEW_STREAM = "torch.cuda.Stream(device) for _ in range(count - len(streams))"
"""How ``forked`` makes side streams, where none of them is capped."""
PARTITION = '''@functools.cache
def partition(device):
    """The multiprocessors of the vendor's products; the driver rounds their number to what it can part."""
    return GreenContext.create(num_sms=VENDOR_MULTIPROCESSORS, device_id=device.index)


def side_stream(device, at):
    """A new stream in the place ``at`` among the side streams: the vendor's come last."""
    return torch.cuda.Stream(device) if at < OWN_STREAMS else partition(device).Stream()
'''
MULTIPLY = '''@torch.no_grad()
def multiply(x, w, out, bias=None):
    """``out = x @ w + bias`` by the vendor's GEMM: fp32 sums, rounded once where ``out`` is narrower."""
    if bias is not None:
        torch.addmm(bias, x, w, out=out)
    elif x.dtype == out.dtype:
        torch.mm(x, w, out=out)
    elif x.is_cuda:
        torch.mm(x, w, out_dtype=out.dtype, out=out)
    else:
        torch.mm(x.to(out.dtype), w.to(out.dtype), out=out)
'''


def require(context: Context, schedule: Schedule) -> None:
    """One down pool and, in the next launch, up pools for the main members with a branch; none where none has one.

    Raises:
        EmissionError: the pools do not make such a schedule, or a vendor GEMM does not make a main product.
    """
    require_roles(schedule, ("down", "up"))
    launched = [[pool.role for pool in pools] for pools in schedule.by_launch()]
    if launched and (launched[0] != ["down"] or len(launched) > 2 or {*launched[-1]} != {"up"}):
        raise EmissionError("schedule 'streams' has one down pool, and up pools in the next launch")
    joined = {main for pool in schedule.pools if pool.role == "up" for main in pool.members}
    branched = {main for main in context.mains if context.group.branches_of(main)}
    if joined != branched:
        nodes = ", ".join(context.member(main).node for main in sorted(joined ^ branched))
        raise EmissionError(f"an up pool lists the main members with a branch, and no others: {nodes}")
    require_downs_before(context, schedule, "up")
    for main in context.mains:
        reason = refusal(context.group, main)
        if reason:
            raise EmissionError(reason)


def kernels(context: Context, schedule: Schedule) -> list[Kernel]:
    """The down kernel and what joins its products; none for members without a branch."""
    if not schedule.pools:
        return []
    down, *ups = schedule.pools
    splits = dict.fromkeys(down.members, down.k_split)
    return [
        down_kernel(context, down),
        bundle([up_main(context, pool, main, 1, splits) for pool in ups for main in pool.members]),
    ]


@dataclass(frozen=True)
class Work:
    """What one stream is given: its lines in ``launch()``, every tensor that they use, and words for it."""

    lines: tuple[str, ...]
    tensors: tuple[str, ...]
    words: str


@dataclass(frozen=True)
class Fork:
    """The part of ``launch()`` from the fork to the join, and what follows it."""

    context: Context
    kernels: tuple[Kernel, ...]
    cap: int | None = None
    """Multiprocessors of the vendor's products; None: all, and the first of them stays on the current stream."""

    @property
    def imports(self) -> str:
        """What the module imports for it."""
        return "import contextlib\n" + "import functools\n" * (self.cap is not None)

    @property
    def later_imports(self) -> str:
        """The same, after torch."""
        return "from torch.cuda.green_contexts import GreenContext\n" * (self.cap is not None)

    @property
    def helpers(self) -> tuple[str, ...]:
        """Top-level sections of source."""
        if self.cap is None:
            return MULTIPLY, FORK
        own = f"OWN_STREAMS = {len(self.kernels[:1])}  # side streams of kernels of this module"
        constants = f"VENDOR_MULTIPROCESSORS = {self.cap}\n{own}\n"
        capped = FORK.replace(NEW_STREAM, "side_stream(device, at) for at in range(len(streams), count)")
        return MULTIPLY, constants + "\n\n" + PARTITION, capped

    def header(self, names: Sequence[str]) -> tuple[str, ...]:
        """Which stream runs what, in words."""
        sides, current = self._work(names)
        beside = ", ".join(work.words for work in sides)
        here = "" if current is None else f"{current.words} on the current one; "
        held = "" if self.cap is None else f", the vendor's on {self.cap} multiprocessors"
        text = f"Streams: {here}each on one of its own: {beside}{held}; what follows waits for all."
        return paragraph(text, first="    ", rest="        ")

    def lines(self, names: Sequence[str]) -> tuple[str, ...]:
        """The launches, the side streams' first: they are short, and wait for a long one otherwise."""
        sides, current = self._work(names)
        body: list[str] = []
        for at, work in enumerate(sides):
            body += call("with on", [f"sides[{at}]", *work.tensors], ":", depth=2)
            body += indented(work.lines)
        body += () if current is None else current.lines
        later = [line for kernel, name in self._named(names)[1:] for line in kernel.launch_source(name)]
        return (f"with forked(x.device, {len(sides)}) as sides:", *indented(body), *later)

    def _named(self, names: Sequence[str]) -> list[tuple[Kernel, str]]:
        return list(zip(self.kernels, names, strict=True))

    def _work(self, names: Sequence[str]) -> tuple[list[Work], Work | None]:
        """The work of each side stream, and that of the current one."""
        products = [self._product(main) for main in self.context.mains]
        downs = [
            Work(
                kernel.launch_source(name),
                tuple(dict.fromkeys(p.expression for p in kernel.params if p.arg.kind in ("operand", "buffer"))),
                name,
            )
            for kernel, name in self._named(names)[:1]
        ]
        return ([*downs, *products[1:]], products[0]) if self.cap is None else ([*downs, *products], None)

    def _product(self, main: int) -> Work:
        """The vendor GEMM of a main member; the bias of one with a branch is added behind the join."""
        member, joined = self.context.member(main), bool(self.context.group.branches_of(main))
        w = self.context.expression(member.weight)
        buffer = self.context.product(main, 1) if joined else self.context.output(main)
        out = f"{buffer.name}[0]" if joined else buffer.name  # one slice of K
        bias = () if joined or member.bias is None else (self.context.expression(member.bias),)
        lines = call("multiply", ["x", w, out, *bias], depth=3)
        return Work(lines, ("x", w, buffer.name, *bias), f"the vendor's x @ {w}")
