"""Compile the kernels of an emitted module in a process that has no card.

Triton's cache does not say who compiled: a later build for the card finds the kernel there, under the same key. For
that the kernel is compiled as there, by the same call, with a driver that knows nothing but the target. Registers and
spills are read from the binary with the tool that Triton brings.
"""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from fusioncc.codegen.launch import EmittedModule
from fusioncc.device import Device
from fusioncc.errors import KernelBuildError
from fusioncc.runtime.build import compiled, require_few_spills
from fusioncc.runtime.compiled import Compiled


@dataclass(frozen=True)
class Target:
    """A driver of Triton's for a card that is not there: kernels compile, and cannot be loaded."""

    capability: int

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)


def compile_for(device: Device) -> None:
    """From now on Triton compiles for this device in this process, which gives up its own card, if it has one."""
    from triton.runtime import driver

    driver.set_active(Target(device.capability))


def build_ahead(emitted: EmittedModule, module: ModuleType, m: int, device: Device) -> tuple[Compiled, ...]:
    """Compile every launch for ``m`` rows, in a process that compiles for ``device``; what each takes, or nothing where
    the tool that tells is missing.

    Raises:
        KernelBuildError: as :func:`fusioncc.runtime.build.build` on the card.
    """
    found = []
    for position, launch in enumerate(emitted.launches):
        kernel = compiled(emitted, module, position, m)
        shared = kernel.metadata.shared
        if shared > device.shared_bytes:
            room = f"it needs {shared} bytes of shared memory, {device.name} has {device.shared_bytes}"
            raise KernelBuildError(f"kernel {launch.kernel} of {emitted.name} does not fit: {room}", position)
        usage = registers_of(kernel.asm["cubin"])
        if usage is None:
            return ()
        registers, spilled = usage
        require_few_spills(emitted, position, spilled)
        found.append(Compiled(launch.num_warps, registers, shared))
    return tuple(found)


def registers_of(cubin: bytes) -> tuple[int, int] | None:
    """Registers of a thread of the one kernel in a binary, and how many it spills: its code has no arrays of its own,
    so that what is on the stack was spilled. None: there is no ``cuobjdump``, or it does not know this binary."""
    from triton import knobs

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        try:
            command = [knobs.nvidia.cuobjdump.path, "-res-usage", str(path)]
            report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        except (RuntimeError, OSError, subprocess.CalledProcessError):
            return None
    found = re.search(r"REG:(\d+) STACK:(\d+)", report)
    return None if found is None else (int(found[1]), int(found[2]) // 4)
