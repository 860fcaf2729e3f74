"""What torch takes the kernels of the golden modules to write, as Inductor asks it; run where triton compiles.

python -m tests.runtime.written
"""

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import triton
from torch._higher_order_ops import triton_kernel_wrap
from triton.backends.compiler import GPUTarget

from fusioncc.codegen import EmittedModule, emit
from fusioncc.codegen.launch import KernelLaunch
from fusioncc.graph import TORCH_DTYPES
from fusioncc.group import Group
from fusioncc.runtime import dependent
from fusioncc.runtime.build import tuned
from fusioncc.runtime.load import load
from tests.codegen.golden_cases import golden

CARD = SimpleNamespace(get_current_target=lambda: GPUTarget("cuda", 90, 32))


@triton.jit
def speaks(x_ptr, y_ptr, ASSEMBLY: triton.language.constexpr):
    triton.language.inline_asm_elementwise(ASSEMBLY, "=r", [], triton.language.int32, is_pure=False, pack=1)
    triton.language.store(y_ptr, triton.language.load(x_ptr))


OTHERS = (
    "bar.sync 0; // $0",
    "griddepcontrol.wait; st.global.b32 [$0], 1;",
    "griddepcontrol.wait; // $0\n bar.sync 0;",
)
"""Assembly that may write anything."""


def written(kernel: Any, arguments: dict[str, Any]) -> set[str]:
    """Names of the tensors that torch takes a kernel to write."""
    index = triton_kernel_wrap.kernel_side_table.add_kernel(kernel)
    constants = triton_kernel_wrap.kernel_side_table.add_constant_args({})
    with mock.patch.object(type(triton.runtime.driver), "active", CARD):
        return set(triton_kernel_wrap.get_mutated_tensors(index, constants, arguments, {}))


def arguments_of(emitted: EmittedModule, launch: KernelLaunch, group: Group) -> dict[str, Any]:
    """Small tensors for pointers, numbers for the rest."""
    dtypes = {buffer.name: buffer.dtype for buffer in emitted.buffers}
    found: dict[str, Any] = {}
    for arg in launch.args:
        if arg.kind in ("operand", "buffer"):
            dtype = arg.operand.dtype if arg.operand is not None else dtypes[str(arg.value)]
            found[arg.name] = torch.empty(1, dtype=TORCH_DTYPES[dtype])
        else:
            found[arg.name] = group.m if arg.kind in ("rows", "size") else arg.value
    return found


def wrong() -> Iterator[str]:
    """Kernels of which torch takes other pointers to be written than those to the buffers that they are first to make:
    in a graph each of these is a tensor of its own."""
    dependent.marked(SimpleNamespace())  # the first kernel that starts early
    for name, (group, schedule, tier) in golden().items():
        emitted = emit(group, schedule, name=f"written_{name}", tier=tier, why="a test")
        module, before = load(emitted.name, emitted.source), set()
        hidden = emitted.opaque or schedule.kind == "k_concat"  # never a Triton kernel that Inductor sees
        for launch in [] if hidden else emitted.launches:
            buffers = {arg.name: str(arg.value) for arg in launch.args if arg.kind == "buffer"}
            fresh = {pointer for pointer, buffer in buffers.items() if buffer not in before}
            before |= set(buffers.values())
            found = written(tuned(getattr(module, launch.kernel), 4, 2), arguments_of(emitted, launch, group))
            if found != fresh:
                yield f"{name}: {launch.kernel} writes {sorted(fresh)}, torch says {sorted(found)}"
            print(f"{name}: {launch.kernel} writes {', '.join(sorted(found))}")
    for assembly in OTHERS:
        found = written(tuned(speaks, 4, 2), {"x_ptr": torch.empty(1), "y_ptr": torch.empty(1), "ASSEMBLY": assembly})
        if found != {"x_ptr", "y_ptr"}:
            yield f"{assembly!r} may write anything, torch says {sorted(found)}"


if __name__ == "__main__":
    problems = list(wrong())
    print("\n".join(problems))
    sys.exit(bool(problems))
