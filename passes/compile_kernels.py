"""Compile kernels: those of a whole graph side by side, into Triton's caches, where building finds them one by one.

Triton compiles in threads, which wait for each other only while one holds Python's lock. What does not load or compile
here is left to the building of its group, which knows what to do about it.
"""

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from fusioncc.codegen.launch import EmittedModule
from fusioncc.decision import accepted_with
from fusioncc.errors import FusionError
from fusioncc.passes.insert_chains import rows_of
from fusioncc.passes.plan_groups import Setting
from fusioncc.plan import ChainPlan, GroupPlan
from fusioncc.runtime.build import compiled
from fusioncc.runtime.load import load
from fusioncc.seam import translated

MAX_THREADS = 16


def compile_kernels(
    groups: Iterable[GroupPlan],
    modules: Mapping[str, EmittedModule],
    chains: Iterable[ChainPlan],
    chain_modules: Mapping[str, EmittedModule],
    setting: Setting,
) -> None:
    """Compile every launch of ``modules`` (by group name) and of ``chain_modules`` (by kernel) that will be built, each
    once, for a card that is there."""
    if not accepted_with(setting.runnable, "cuda"):
        return
    wanted = {each.kernel: (modules[each.name], each.m) for each in groups if each.name in modules}
    wanted |= {each.kernel: (chain_modules[each.kernel], rows_of(each)) for each in chains if each.claimed}
    with suppress(FusionError):
        translated("compiling side by side failed", partial(compile_together, wanted.values()), FusionError)


def compile_together(wanted: Iterable[tuple[EmittedModule, int]]) -> None:
    """Compile modules for numbers of rows, for the device that Triton compiles for."""
    import triton

    threads = min(MAX_THREADS, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(threads) as pool, triton.AsyncCompileMode(pool, ignore_errors=True):
        for emitted, m in wanted:
            for position in range(len(emitted.launches)):
                with suppress(FusionError):
                    translated(
                        "its kernel does not start to compile", partial(_begin, emitted, position, m), FusionError
                    )


def _begin(emitted: EmittedModule, position: int, m: int) -> None:
    compiled(emitted, load(emitted.name, emitted.source), position, m)
