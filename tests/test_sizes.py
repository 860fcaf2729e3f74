"""Sizes as numbers that are equal as expressions."""

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from fusioncc.graph import is_dense, is_static, same_size
from fusioncc.sizes import Symbolic, is_known, sizes_of


@pytest.fixture
def value() -> torch.Tensor:
    """A fake tensor ``[s0, s1, 8]`` of five and seven."""
    sizes = [DimDynamic.DYNAMIC, DimDynamic.DYNAMIC, DimDynamic.STATIC]
    mode = FakeTensorMode(shape_env=ShapeEnv())
    return mode.from_tensor(torch.ones(5, 7, 8), symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes))


def test_a_symbolic_size_is_its_hint_and_equal_as_an_expression(value: torch.Tensor) -> None:
    b, s, n = sizes_of(value.shape)
    assert (int(b), int(s), n) == (5, 7, 8) and type(n) is int
    assert b != 5 and b != s and b == sizes_of(value.shape)[0] and b in (1, b) and b not in (1, 5)
    assert b * s == s * b == sizes_of([value.shape[0] * value.shape[1]])[0] and int(b * s) == 35
    assert b * s != 35 and 2 * b == b * 2 and 2 * b != 10 and int(2 * b) == 10 and b * 0 == 0
    assert (b > 1, max(b, 6), 2.0 * b) == (True, 6, 10.0)
    assert len({b, sizes_of(value.shape)[0], 5}) == 2


def test_strides_are_products_of_sizes(value: torch.Tensor) -> None:
    _, s, n = sizes_of(value.shape)
    assert sizes_of(value.stride()) == (s * n, n, 1)
    assert repr(sizes_of(value.stride())[:1]) == f"({value.stride(0)},)"


def test_a_permuted_tensor_of_symbolic_sizes_is_dense(value: torch.Tensor) -> None:
    assert is_dense(value.permute(1, 2, 0)) and not is_dense(value[..., :4].permute(1, 2, 0))
    assert value.shape[0].node.shape_env.guards == []


def test_no_guard_is_added(value: torch.Tensor) -> None:
    b, s, _ = sizes_of(value.shape)
    assert b != s and b != 1 and int(b) == 5 and isinstance(b, Symbolic)
    assert value.shape[0].node.shape_env.guards == []


def test_a_size_that_depends_on_data_has_no_number() -> None:
    size = ShapeEnv().create_unbacked_symint()
    assert not is_known(size) and is_known(3)


def test_a_stride_that_is_one_number_for_all_sizes_is_static(value: torch.Tensor) -> None:
    """What torch.export views has strides like ``Min(8, 8*s0)``."""
    size = value.shape[0]
    stride = torch.sym_min(8 * size, 8)
    assert is_static(stride) and same_size(stride, 8) and int(stride) == 8
    assert not is_static(torch.sym_min(8 * size, 800))
    assert size.node.shape_env.guards == []
