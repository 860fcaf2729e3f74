"""Build the kernels of an emitted module for the current CUDA device before anything is inserted.

A kernel that does not compile, needs more shared memory than the card has, or spills registers is refused here, so that
it never reaches Inductor or a user's call.
"""

import functools
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from fusioncc.codegen.launch import EmittedModule, KernelLaunch
from fusioncc.errors import KernelBuildError
from fusioncc.graph import TORCH_DTYPES

MAX_SPILLED_BYTES = 64
"""A few spilled registers cost less than the smaller tile that avoids them; more is a wrong choice of tile."""


@dataclass(frozen=True)
class Compiled:
    """What one program of a compiled kernel takes: warps, 32-bit registers of a thread, bytes of shared memory."""

    num_warps: int
    registers: int
    shared_bytes: int


@functools.cache
def tuned(function: Any, num_warps: int, num_stages: int) -> Any:
    """The kernel with its warps and stages fixed, as Inductor takes them. One object for equal settings."""
    import triton

    return triton.autotune(configs=[triton.Config({}, num_warps=num_warps, num_stages=num_stages)], key=[])(function)


def build(emitted: EmittedModule, module: ModuleType, m: int) -> tuple[Compiled, ...]:
    """Compile and load every launch of ``emitted`` for ``m`` rows on the current device; what each takes.

    Raises:
        KernelBuildError: with the kernel's name and the compiler's last line.
    """
    return tuple(
        _build_launch(emitted, getattr(module, launch.kernel), launch, position, m)
        for position, launch in enumerate(emitted.launches)
    )


def _build_launch(emitted: EmittedModule, function: Any, launch: KernelLaunch, position: int, m: int) -> Compiled:
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import OutOfResources, PTXASError
    from triton.runtime.jit import MockTensor

    dtypes = {buffer.name: buffer.dtype for buffer in emitted.buffers}
    arguments: dict[str, Any] = {}
    for arg in launch.args:
        if arg.kind == "operand":
            assert arg.operand is not None
            arguments[arg.name] = MockTensor(TORCH_DTYPES[arg.operand.dtype])
        elif arg.kind == "buffer":
            arguments[arg.name] = MockTensor(TORCH_DTYPES[dtypes[str(arg.value)]])
        elif arg.kind == "trace":
            arguments[arg.name] = MockTensor(torch.int64)
        else:
            arguments[arg.name] = m if arg.kind == "rows" else arg.value
    try:
        options: dict[str, Any] = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
        options |= {"launch_pdl": True} if launch.dependent else {}
        kernel = function.warmup(**arguments, grid=(1,), **options)
        kernel._init_handles()
    except (CompilationError, PTXASError, OutOfResources, RuntimeError, ValueError, AssertionError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise KernelBuildError(
            f"kernel {launch.kernel} of {emitted.name} does not build: {reason}", position
        ) from error
    if kernel.n_spills > MAX_SPILLED_BYTES:
        raise KernelBuildError(
            f"kernel {launch.kernel} of {emitted.name} spills {kernel.n_spills} bytes of registers",
            position,
            spilled=True,
        )
    return Compiled(launch.num_warps, kernel.n_regs, kernel.metadata.shared)
