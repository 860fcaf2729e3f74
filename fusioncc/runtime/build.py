"""Build the kernels of an emitted module for the current CUDA device before anything is inserted.

A kernel that does not compile, needs more shared memory than the card has, or spills registers is refused here, so that
it never reaches Inductor or a user's call.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from fusioncc.codegen.launch import EmittedModule
from fusioncc.errors import KernelBuildError
from fusioncc.graph import TORCH_DTYPES
from fusioncc.runtime.compiled import Compiled

MAX_SPILLED = 64
"""Registers of a thread. A few that are spilled cost less than the smaller tile that avoids them; more is a wrong
choice of tile."""


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
        _loaded(emitted, position, compiled(emitted, module, position, m)) for position in range(len(emitted.launches))
    )


def compiled(emitted: EmittedModule, module: ModuleType, position: int, m: int) -> Any:
    """Triton's kernel of one launch for ``m`` rows, out of its cache if it was compiled before; not yet on the card.

    Raises:
        KernelBuildError: as :func:`build`.
    """
    from triton.runtime.jit import MockTensor

    launch = emitted.launches[position]
    dtypes = {buffer.name: buffer.dtype for buffer in emitted.buffers}
    arguments: dict[str, Any] = {}
    for arg in launch.args:
        if arg.kind == "operand":
            assert arg.operand is not None
            arguments[arg.name] = MockTensor(TORCH_DTYPES[arg.operand.dtype])
        elif arg.kind == "buffer":
            arguments[arg.name] = MockTensor(TORCH_DTYPES[dtypes[str(arg.value)]])
        elif arg.kind == "size":
            assert arg.operand is not None
            arguments[arg.name] = arg.operand.shape[0]
        elif arg.kind == "trace":
            arguments[arg.name] = MockTensor(torch.int64)
        else:
            arguments[arg.name] = m if arg.kind == "rows" else arg.value
    options: dict[str, Any] = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
    options |= {"launch_pdl": True} if launch.dependent else {}
    with _refused(emitted, position):
        return getattr(module, launch.kernel).warmup(**arguments, grid=(1,), **options)


def require_few_spills(emitted: EmittedModule, position: int, spilled: int) -> None:
    """A thread of the launch spills at most ``MAX_SPILLED`` registers.

    Raises:
        KernelBuildError: it spills more.
    """
    if spilled > MAX_SPILLED:
        kernel = emitted.launches[position].kernel
        raise KernelBuildError(f"kernel {kernel} of {emitted.name} spills {spilled} registers", position, spilled=True)


def _loaded(emitted: EmittedModule, position: int, kernel: Any) -> Compiled:
    with _refused(emitted, position):
        kernel._init_handles()
    require_few_spills(emitted, position, kernel.n_spills)
    return Compiled(emitted.launches[position].num_warps, kernel.n_regs, kernel.metadata.shared)


@contextmanager
def _refused(emitted: EmittedModule, position: int) -> Iterator[None]:
    """What Triton raises inside, for a kernel that does not build, becomes an error of ours."""
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import OutOfResources, PTXASError

    try:
        yield
    except (CompilationError, PTXASError, OutOfResources, RuntimeError, ValueError, AssertionError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
        kernel = emitted.launches[position].kernel
        raise KernelBuildError(f"kernel {kernel} of {emitted.name} does not build: {reason}", position) from error
