"""Results of kernels in the shape and with the strides of what they replace, those of single elements too."""

from collections.abc import Iterator
from itertools import permutations, product

import pytest
import torch
from torch import fx
from torch._subclasses import FakeTensorMode

from fusioncc.passes.insertion import Insertion, laid_like
from tests.shown import shown

ORDERS = tuple(permutations(range(4)))


def views(matrix: torch.Tensor, shape: tuple[int, ...]) -> Iterator[torch.Tensor]:
    """Views of a matrix in all orders of these dimensions, and with another dimension anywhere."""
    for order in ORDERS:
        view = matrix.view(shape).permute(order)
        yield view
        yield from (view.unsqueeze(dim) for dim in range(5))


@pytest.mark.exhaustive
@pytest.mark.parametrize("shape", shown([*product((2, 1), (3, 1), (4, 1), (5, 1))], 3))
def test_results_lie_as_those_that_they_replace(shape: tuple[int, ...]) -> None:
    matrix = torch.randn(shape[0] * shape[1], shape[2] * shape[3])
    contiguous = set()
    for wanted in views(matrix, shape):
        got = laid(matrix, wanted)
        assert (got.shape, got.stride()) == (wanted.shape, wanted.stride()) and got.equal(wanted)
        assert got.data_ptr() == matrix.data_ptr()
        contiguous.add(got.is_contiguous())
    assert contiguous == ({True, False} if matrix.numel() > max(shape) else {True})


def laid(matrix: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """The matrix as :func:`laid_like` brings it into the layout of ``wanted``."""
    mode, graph = FakeTensorMode(), fx.Graph()
    made, old = graph.placeholder("made"), graph.placeholder("old")
    made.meta["val"], old.meta["val"] = mode.from_tensor(matrix), mode.from_tensor(wanted)
    found = laid_like(Insertion(graph, {}), made, old)
    graph.output(found)
    value = fx.GraphModule({}, graph)(matrix, wanted)
    assert found.meta["val"].stride() == value.stride()
    return value
