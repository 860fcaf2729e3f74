"""bf16 in the mended interpreter: conversions as torch does them, sums and products, and nothing left behind."""

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

from fusioncc.runtime.interpreter import mended, narrow, widen

EVERY_BF16 = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)


@triton.jit
def arithmetic(x_ptr, y_ptr, sum_ptr, product_ptr, less_ptr, dot_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    x, y = tl.load(x_ptr + at), tl.load(y_ptr + at)
    tl.store(sum_ptr + at, x + y)
    tl.store(product_ptr + at, x * y)
    tl.store(less_ptr + at, (x < y).to(tl.int32))
    tl.store(dot_ptr + at, tl.dot(x, y).to(tl.bfloat16))


def bits(values: torch.Tensor) -> np.ndarray:
    return values.view(torch.int16).numpy().view(np.uint16)


def test_widen_is_torch_on_every_bf16() -> None:
    """All 65536 patterns: subnormals, infinities and every NaN included."""
    expected = torch.from_numpy(EVERY_BF16.view(np.int16)).view(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(widen(EVERY_BF16).view(np.uint32), expected.view(np.uint32))


def test_narrow_undoes_widen() -> None:
    values = widen(EVERY_BF16)
    back = narrow(values)
    number = ~np.isnan(values)
    np.testing.assert_array_equal(back[number], EVERY_BF16[number])
    assert np.isnan(widen(back[~number])).all()


@pytest.mark.parametrize("offset", [-1, 0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
def test_narrow_rounds_as_torch(offset: int) -> None:
    """Around each bf16 value and around the tie above it; the largest values become infinite."""
    patterns = ((EVERY_BF16.astype(np.int64) << 16) + offset) & 0xFFFFFFFF
    values = patterns.astype(np.uint32).view(np.float32)
    values = values[~np.isnan(values)]
    np.testing.assert_array_equal(narrow(values), bits(torch.from_numpy(values).bfloat16()))


@pytest.mark.parametrize("pattern", [0x7FC00000, 0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF])
def test_narrow_keeps_nan(pattern: int) -> None:
    """NaN whose payload lies in the dropped half, or would overflow when rounded, stays NaN."""
    assert np.isnan(widen(narrow(np.array([pattern], dtype=np.uint32).view(np.float32)))).all()


@pytest.mark.parametrize("shape", [(3,), (2, 3), (0, 4)])
def test_shapes_are_kept(shape: tuple[int, ...]) -> None:
    assert narrow(np.zeros(shape, dtype=np.float32)).shape == shape
    assert widen(np.zeros(shape, dtype=np.uint16)).shape == shape


def test_values_that_are_not_contiguous() -> None:
    values = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32).T
    np.testing.assert_array_equal(narrow(values), bits(torch.from_numpy(values.copy()).bfloat16()))


def run() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Results of the kernel, and torch's."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(16, 16, generator=generator).bfloat16() for _ in range(2))
    outputs = [torch.zeros(16, 16, dtype=dtype) for dtype in (torch.bfloat16, torch.bfloat16, torch.int32)]
    outputs.append(torch.zeros(16, 16, dtype=torch.bfloat16))
    arithmetic[(1,)](x, y, *outputs, SIZE=16)
    return outputs, [x + y, x * y, (x < y).int(), (x.float() @ y.float()).bfloat16()]


def test_arithmetic_is_torch_inside() -> None:
    with mended():
        results, expected = run()
    for result, truth in zip(results[:3], expected[:3], strict=True):
        assert torch.equal(result, truth)
    torch.testing.assert_close(results[3], expected[3], rtol=2**-7, atol=2**-7)  # another order of the sum


def test_nothing_stays_patched() -> None:
    builder = interpreter.InterpreterBuilder
    before = (interpreter._convert_float, builder.binary_op, builder.create_dot)
    with mended(), mended():
        assert interpreter._convert_float is not before[0]
    assert (interpreter._convert_float, builder.binary_op, builder.create_dot) == before
    with pytest.raises(RuntimeError, match="inside"), mended():
        raise RuntimeError("inside")
    assert (interpreter._convert_float, builder.binary_op, builder.create_dot) == before
