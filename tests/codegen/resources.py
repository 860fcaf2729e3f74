"""Shared memory, registers and spills of emitted kernels for cards that are not here.

``python -m tests.codegen.resources`` compiles the kernels of every golden module for compute capability 80, 90 and 100
and fails where a kernel does not fit or spills. Needs triton, no GPU; must run in a process of its own, without
``TRITON_INTERPRET``.

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
from dataclasses import dataclass
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas, sm_arch_from_capability
from triton.compiler import ASTSource

from fusioncc.codegen import EmittedModule, KernelLaunch, emit
from tests.codegen.cases import golden

SHARED_LIMIT = {80: 166912, 90: 232448, 100: 232448}
"""Largest dynamic shared memory of one program in bytes, by capability times ten (CUDA programming guide)."""
TRITON_DTYPES = {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32"}


@dataclass(frozen=True)
class Usage:
    """What one kernel uses: shared memory in bytes, 32-bit registers a thread, bytes spilled a thread."""

    kernel: str
    capability: int
    shared: int
    registers: int
    spilled: int

    @property
    def problem(self) -> str:
        """Why the kernel does not fit, or nothing."""
        if self.shared > SHARED_LIMIT[self.capability]:
            return f"{self.shared} bytes of shared memory, limit {SHARED_LIMIT[self.capability]}"
        return f"{self.spilled} bytes spilled" if self.spilled else ""


def usages(module: EmittedModule, m: int, capability: int) -> list[Usage]:
    """Compile each distinct launch of the module for ``m`` rows."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{module.name}.py"
        path.write_text(module.source)
        spec = importlib.util.spec_from_file_location(module.name, path)
        namespace = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(namespace)
        launches = {repr(launch).replace("Operand", ""): launch for launch in module.launches}
        return [usage(getattr(namespace, launch.kernel), launch, module, m, capability) for launch in launches.values()]


def usage(function, launch: KernelLaunch, module: EmittedModule, m: int, capability: int) -> Usage:
    """Compile one launch; pointers are taken as divisible by 16, as allocators give them."""
    buffers = {buffer.name: buffer.dtype for buffer in module.buffers}
    signature, constants, attributes = {}, {}, {}
    for index, arg in enumerate(launch.args):
        if arg.kind == "constexpr" or (arg.kind == "rows" and m == 1):
            signature[arg.name] = "constexpr"
            constants[arg.name] = 1 if arg.kind == "rows" else arg.value
            continue
        if arg.kind == "rows":
            signature[arg.name] = "i32"
            aligned = m % 16 == 0
        else:
            signature[arg.name] = "*" + TRITON_DTYPES[buffers[arg.value] if arg.kind == "buffer" else arg.operand.dtype]
            aligned = True
        if aligned:
            attributes[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(function, signature=signature, constexprs=constants, attrs=attributes)
    options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
    kernel = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return Usage(launch.kernel, capability, kernel.metadata.shared, *assembled(kernel.asm["ptx"], capability))


def assembled(ptx: str, capability: int) -> tuple[int, int]:
    """Registers and spilled bytes, as ptxas reports them."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(ptx)
        command = [get_ptxas(capability).path, "-v", f"--gpu-name={sm_arch_from_capability(capability)}", str(path)]
        log = subprocess.run([*command, "-o", "/dev/null"], capture_output=True, text=True, check=True).stderr
    registers = max(int(count) for count in re.findall(r"Used (\d+) registers", log))
    return registers, sum(int(count) for count in re.findall(r"(\d+) bytes spill", log))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--capability", type=int, action="append", choices=sorted(SHARED_LIMIT))
    parser.add_argument("--only", default="", help="part of the names of the golden modules")
    options = parser.parse_args()
    failures = 0
    for name, (group, schedule, tier) in golden().items():
        if options.only not in name:
            continue
        module = emit(group, schedule, name=name, tier=tier, why="golden")
        described = any(pool.tile.tma for pool in schedule.pools)
        for capability in options.capability or sorted(SHARED_LIMIT):
            if described and capability < 90:
                continue  # no descriptors before Hopper
            for used in usages(module, group.m, capability):
                failures += bool(used.problem)
                print(
                    f"{name:28} {used.kernel:8} {capability:4} {used.shared:7} B shared {used.registers:4} registers"
                    f" {used.spilled:5} B spilled  {used.problem}",
                    flush=True,
                )
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
