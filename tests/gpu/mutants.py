"""A bench whose kernels are wrong, never end, or write far away, by ``group_m`` of their schedule."""

from dataclasses import replace
from typing import Any

from fusioncc.codegen import EmittedModule
from fusioncc.schedule import Schedule
from fusioncc.tuning import emitted
from fusioncc.tuning.bench import CardBench

STORE = "    tl.store(out_tile"
MUTANTS = {
    1: (STORE, f"{STORE} + 1"),
    2: (STORE, "    while tl.load(x_ptr, volatile=True) == tl.load(x_ptr, volatile=True):\n        pass\n" + STORE),
    3: (STORE, f"{STORE} + (1 << 44)"),
}
"""``group_m`` -> what is written in the place of what."""

plain = emitted.emit


def emit(group: Any, schedule: Schedule, **names: Any) -> EmittedModule:
    module = plain(group, schedule, **names)
    before, after = MUTANTS.get(schedule.pools[0].group_m, ("", ""))
    assert before in module.source
    return replace(module, source=module.source.replace(before, after)) if before else module


def bench(index: str, uuid: str) -> CardBench:
    emitted.emit = emit
    return CardBench(index, uuid)
