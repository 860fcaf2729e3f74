"""``python -m tests.passes.compiled_together`` compiles golden modules for an H200 side by side, between one that does
not import and one that does not compile, then one by one; prints what Triton compiled in either, by kernel, and in how
many threads. Needs triton, no GPU; must run in a process of its own, without ``TRITON_INTERPRET``."""

import json
import os
import tempfile
import threading
from collections import Counter
from dataclasses import replace
from unittest import mock

from triton import compiler, knobs

from fusioncc.codegen import EmittedModule, emit
from fusioncc.device import get_device
from fusioncc.errors import KernelBuildError
from fusioncc.passes.compile_kernels import compile_together
from fusioncc.runtime.ahead import compile_for
from fusioncc.runtime.build import build, compiled
from fusioncc.runtime.load import load
from tests.codegen.golden_cases import golden

CASES = ("inline_mlp", "split_mlp")


def broken(module: EmittedModule) -> tuple[EmittedModule, EmittedModule]:
    """One that does not import, and one whose kernel does not compile."""
    lost = replace(module, name="lost", source=f"import no_such_module\n{module.source}")
    spoilt = module.source.replace("tl.program_id(0)", "tl.no_such_id(0)")
    assert spoilt != module.source
    return lost, replace(module, name="spoilt", source=spoilt)


def main() -> None:
    compiled_now, threads = Counter[str](), set[int]()
    knobs.runtime.jit_post_compile_hook = lambda **told: compiled_now.update([told["fn"].name.rpartition(".")[2]])
    compile_for(get_device("h200"))
    cases = {name: golden()[name] for name in CASES}
    modules = [
        (emit(group, schedule, name=name, tier=tier, why="forced"), group.m)
        for name, (group, schedule, tier) in cases.items()
    ]
    lost, spoilt = broken(modules[0][0])
    compile_one = compiler.compile

    def counted(*args: object, **kwargs: object) -> object:
        threads.add(threading.get_ident())
        return compile_one(*args, **kwargs)

    with mock.patch("triton.compiler.compile", counted), mock.patch("os.sched_getaffinity", lambda pid: range(4)):
        compile_together([(lost, 64), modules[0], (spoilt, 64), *modules[1:]])
    together = dict(compiled_now)
    compiled_now.clear()
    for emitted, m in modules:
        for position in range(len(emitted.launches)):
            compiled(emitted, load(emitted.name, emitted.source), position, m)
    try:
        build(spoilt, load(spoilt.name, spoilt.source), 64)
        failure = ""
    except KernelBuildError as error:
        failure = str(error)
    print(json.dumps({"together": together, "after": dict(compiled_now), "threads": len(threads), "failure": failure}))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FUSIONCC_CACHE_DIR"] = os.environ["TRITON_CACHE_DIR"] = folder
        main()
