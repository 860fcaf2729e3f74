"""Shared memory, registers and spills of emitted kernels for cards that are not here.

``python -m tests.codegen.resources`` compiles the kernels of every golden module for compute capability 80, 90 and 100
and fails where a kernel does not fit, spills, or needs more shared memory than the cost model predicts. Needs triton,
no GPU; must run in a process of its own, without ``TRITON_INTERPRET``.

Shared memory as observed with triton 3.7.1 (27 tiles, ranks 16 and 64, bf16 and fp32 adapters, capability 90), in
bytes, with x, w, a, b bytes an element and RP the padded rank:

    step   = x * BM * BK + w * BK * BN                        a plain or a split main tile
           + sum over branches of a * BK * RP                 inline
    inline = stages * step + 3 * 2 * BK * RP                  the last term for fp32 adapters over bf16 only (pieces)
    split  = stages * step + sum of b * RP * BN               the operand B of the opening product
           + sum of b * RP * BM when swapped                  and y, when it is the right operand
    down   = stages * (x * BM * BK + sum of a * BK * RP)

No kernel of 216 used more. At 64 rows or more, unswapped, the sums are exact (up to 12 % high for ``inline`` over
fp32 adapters); with fewer rows the old MMA keeps stages - 1 copies, as capability 80 always does, and they are high.
"""

import argparse
import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fusioncc.codegen import EmittedModule, KernelLaunch, emit
from fusioncc.cost_models.launches import launches
from fusioncc.cost_models.resources import shared_bytes
from fusioncc.device import Device, get_device
from fusioncc.group import Group
from fusioncc.schedule import Schedule
from tests.codegen.golden_cases import golden

TRITON_DTYPES = {"int32": "i32", "int64": "i64", "int8": "i8", "bool": "i1"}
DEVICES = {80: get_device("a100-80"), 90: get_device("h200"), 100: get_device("b200")}
"""A card of each capability: its shared memory, and what the cost model predicts for it."""


@dataclass(frozen=True)
class Usage:
    """What one kernel uses: shared memory in bytes (and as predicted); a thread's 32-bit registers, and its stack of
    spilled registers in bytes."""

    kernel: str
    device: Device
    shared: int
    predicted: int
    registers: int
    spilled: int

    @property
    def problem(self) -> str:
        """Why the kernel does not fit, or nothing."""
        if self.shared > min(self.predicted, self.device.shared_bytes):
            return f"shared memory over the limit of {self.device.shared_bytes} or over the prediction"
        return f"{self.spilled} bytes spilled" if self.spilled else ""


def usages(module: EmittedModule, group: Group, schedule: Schedule, tier: str, device: Device) -> Iterator[Usage]:
    """Compile each function of the module once, with the constants of its first launch."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{module.name}.py"
        path.write_text(module.source)
        spec = importlib.util.spec_from_file_location(module.name, path)
        assert spec is not None and spec.loader is not None
        namespace = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(namespace)
        seen = set()
        models = [model for model in launches(group, schedule, tier) if model.pool is not None]
        for launch, model in zip(module.launches, models, strict=True):
            if launch.kernel not in seen:
                seen.add(launch.kernel)
                used = compiled(getattr(namespace, launch.kernel), launch, module, group.m, device.capability)
                yield Usage(launch.kernel, device, used[0], shared_bytes(model, device), *used[1:])


def compiled(
    function: Any, launch: KernelLaunch, module: EmittedModule, m: int, capability: int
) -> tuple[int, int, int]:
    """Shared memory, registers, spills of one launch; pointers are divisible by 16, as allocators give them."""
    buffers = {buffer.name: buffer.dtype for buffer in module.buffers}
    signature, constants, attributes = {}, {}, {}
    for index, arg in enumerate(launch.args):
        if arg.kind == "constexpr" or (arg.kind == "rows" and m == 1):
            signature[arg.name] = "constexpr"
            constants[arg.name] = 1 if arg.kind == "rows" else arg.value
            continue
        if arg.kind in ("rows", "size"):
            signature[arg.name] = "i32"
        else:
            dtype = arg.operand.dtype if arg.operand is not None else buffers.get(str(arg.value), "int64")
            signature[arg.name] = f"*{TRITON_DTYPES.get(dtype, dtype)}"
        if arg.kind not in ("rows", "size") or m % 16 == 0:
            attributes[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(function, signature=signature, constexprs=constants, attrs=attributes)
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
    kernel = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return kernel.metadata.shared, *assembled(kernel.asm["cubin"])


def assembled(cubin: bytes) -> tuple[int, int]:
    """Registers, and bytes of stack, of the one kernel in a binary: its code has no arrays of its own, so what is on
    the stack was spilled."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", str(path)]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    ((registers, stack),) = re.findall(r"REG:(\d+) STACK:(\d+)", report)
    return int(registers), int(stack)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--capability", type=int, action="append", choices=sorted(DEVICES))
    parser.add_argument("--only", default="", help="part of the names of the golden modules")
    parser.add_argument("--trace", action="store_true", help="only those with something to trace, traced")
    options = parser.parse_args()
    failures = 0
    for name, (group, schedule, tier) in golden().items():
        if options.only not in name:
            continue
        module = emit(group, schedule, name=name, tier=tier, why="golden", trace=options.trace)
        if options.trace and not module.traced:
            continue
        hopper = any(pool.tile.tma or pool.dependent for pool in schedule.pools)
        for capability in options.capability or sorted(DEVICES):
            if hopper and capability < 90:
                continue  # neither descriptors nor dependent launches before Hopper
            for used in usages(module, group, schedule, tier, DEVICES[capability]):
                failures += bool(used.problem)
                print(
                    f"{name:28} {used.kernel:8} {capability:4} {used.shared:7} B shared"
                    f" ({used.predicted:6} predicted) {used.registers:4} registers"
                    f" {used.spilled:5} B spilled  {used.problem}",
                    flush=True,
                )
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
