"""Which reshapes copy, held against eager for many layouts, and what is asked of memory behind one that does."""

from collections.abc import Iterator
from itertools import permutations

import pytest
import torch
from torch import fx
from torch._inductor import config
from torch._subclasses import FakeTensorMode

from fusioncc.graph import aten, copies, gaps_may_close, rows_may_be_padded, tensor

SHAPES = ((24,), (4, 6), (6, 4), (2, 12), (2, 2, 6), (4, 1, 6), (2, 3, 4), (4, 3, 2), (1, 2, 2, 3, 2))


def layouts() -> Iterator[torch.Tensor]:
    """Tensors of 24 elements: dense ones in all orders of their dimensions, with gaps, expanded."""
    for shape in ((4, 6), (2, 3, 4), (2, 1, 12), (2, 2, 2, 3)):
        for order in permutations(range(len(shape))):
            yield torch.empty(shape).permute(order)
    yield torch.empty(4, 12)[:, ::2]
    yield torch.empty(4, 9)[:, :6]
    yield torch.empty(8, 6)[::2]
    yield torch.empty(1, 6).expand(4, 6)
    yield torch.empty(2, 1, 4).expand(2, 3, 4)


class Written:
    """A graph over one input, node by node."""

    def __init__(self, value: torch.Tensor) -> None:
        self.graph = fx.Graph()
        self.node = self.graph.placeholder("x")
        self.node.meta["val"] = FakeTensorMode().from_tensor(value)

    def then(self, target: torch._ops.OpOverload, *args: object) -> fx.Node:
        value = target(tensor(self.node), *args)
        self.node = self.graph.call_function(target, (self.node, *args))
        self.node.meta["val"] = value
        return self.node


@pytest.mark.exhaustive
def test_a_reshape_copies_where_eager_does() -> None:
    seen = []
    for value in layouts():
        for shape in SHAPES:
            copied = value.reshape(shape).data_ptr() != value.data_ptr()
            node = Written(value).then(aten.reshape.default, list(shape))
            assert copies(node) == copied, (value.shape, value.stride(), shape)
            seen.append(copied)
    assert 0 < sum(seen) < len(seen)


def test_no_other_view_copies() -> None:
    value = torch.empty(2, 1, 12).permute(2, 1, 0)
    for target, args in ((aten.unsqueeze.default, (1,)), (aten.squeeze.dim, (1,)), (aten.squeeze.default, ())):
        assert not copies(Written(value).then(target, *args))
    assert not copies(Written(value).then(aten.permute.default, [2, 0, 1]))


@config.patch(triton_kernel_default_layout_constraint="flexible_layout")
def test_a_copy_of_an_input_is_an_intermediate() -> None:
    for permuted in (False, True):
        graph = Written(torch.empty(40, 60))
        if permuted:
            graph.then(aten.permute.default, [1, 0])
        reshaped = graph.then(aten.reshape.default, [30, 80])
        assert rows_may_be_padded(reshaped) == permuted
        assert gaps_may_close(graph.then(aten.slice.Tensor, 1, 0, 40)) == permuted
