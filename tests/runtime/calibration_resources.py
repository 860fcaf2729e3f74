"""Compiles the kernels that ``fusioncc calibrate`` times, for compute capability 80, 90 and 100.

``python -m tests.runtime.calibration_resources`` fails where one does not build, does not fit or spills. Needs triton,
no GPU; must run in a process of its own, without ``TRITON_INTERPRET``.
"""

import sys
from collections.abc import Iterator
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fusioncc.runtime import calibration_kernels as kernels
from fusioncc.runtime import timings
from tests.codegen.resources import DEVICES, assembled


def cases(shared_bytes: int) -> Iterator[tuple[Any, dict[str, str], dict[str, int], dict[str, int]]]:
    """Kernel, types of its arguments, constants and options, as they are timed on a card."""
    yield kernels.empty, {"word_ptr": "*i32"}, {}, {}
    yield kernels.copy, {"x_ptr": "*fp32", "out_ptr": "*fp32"}, {"BLOCK": timings.COPY_BLOCK}, {}
    constants = {"BLOCKS": 800, "BLOCK": timings.L2_BLOCK}
    yield kernels.read_resident, {"x_ptr": "*fp32", "sums_ptr": "*fp32", "steps": "i32"}, constants, {"num_warps": 8}
    yield kernels.hand_over, {"flag_ptr": "*i32", "rounds": "i32"}, {}, {"num_warps": 1}
    for m, n, k, warps, stages in timings.tiles_for(shared_bytes):
        blocks = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": timings.GROUP_M}
        constants = {"SIZE": timings.TILE_GEMM_SIZE, **blocks}
        pointers = dict.fromkeys(("x_ptr", "w_ptr", "out_ptr"), "*bf16")
        yield kernels.gemm, pointers, constants, {"num_warps": warps, "num_stages": stages}


def main() -> int:
    failures = 0
    for capability, device in DEVICES.items():
        for function, types, constants, options in cases(device.shared_bytes):
            attributes = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(types.values()) if kind[0] == "*"}
            signature = {**types, **dict.fromkeys(constants, "constexpr")}
            source = ASTSource(function, signature=signature, constexprs=constants, attrs=attributes)
            kernel = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
            registers, spilled = assembled(kernel.asm["cubin"])
            wrong = kernel.metadata.shared > device.shared_bytes or spilled > 0
            failures += wrong
            label = "x".join([function.__name__, *(str(constants[name]) for name in constants if "BLOCK_" in name)])
            used = f"{kernel.metadata.shared} B shared, {registers} registers, {spilled} B spilled"
            print(f"{label} {capability}: {used}{' WRONG' if wrong else ''}")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
