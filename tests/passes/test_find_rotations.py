"""What is a rotation of halves and what is not, rule by rule and through every door."""

from collections.abc import Callable

import pytest
import torch
from torch import fx

from fusioncc.decision import Rejected
from fusioncc.graph import aten
from fusioncc.passes.find_rotations import RULES, Rotations, find_rotations, read_by
from fusioncc.passes.read_rotations import JOINS, SPLITS
from tests.passes.chain_graphs import Function
from tests.passes.doors import DOORS
from tests.shown import shown

D = 16
X = torch.ones(2, 4, 6, D)
Call = Callable[..., object]


def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    size = x.shape[-1] // 2
    return x[..., :size], x[..., size:]


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    lo, hi = halves(x)
    return torch.cat((-hi, lo), -1)


def in_parts(x: torch.Tensor) -> torch.Tensor:
    lo, hi = x.chunk(2, -1)
    return torch.cat((-hi, lo), dim=-1)


ACCEPTED: dict[str, Call] = {
    "slices": rotate_half,
    "parts": in_parts,
    "from the end": lambda x: torch.cat((-x[..., -D // 2 :], x[..., : -D // 2]), 3),
    "of what is computed": lambda x: rotate_half(x * 2) + x,
    "twice": lambda x: rotate_half(rotate_half(x)),
}


@pytest.mark.parametrize("door", shown(DOORS, 1))
@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name: str, door: str) -> None:
    graph = DOORS[door](Function(ACCEPTED[name]), (X,)).graph
    found = find_rotations(graph)
    order = {node: at for at, node in enumerate(graph.nodes)}
    rotations = {rotation.node: rotation for rotation in found.of.values()}
    assert not found.refused
    assert len(rotations) == (2 if name == "twice" else 1)
    for rotation in rotations.values():
        assert [*rotation.nodes] == sorted(rotation.nodes, key=order.__getitem__)
        assert rotation.nodes[-1] is rotation.node
        assert not {*rotation.nodes} & {*read_by(rotation)}


REFUSED: dict[str, tuple[Call, str, str]] = {
    "two values": (
        lambda x: torch.cat((-halves(x * 2)[1], halves(x)[0]), -1),
        "same_value",
        "the halves are of two values",
    ),
    "unequal parts": (
        lambda x: torch.cat((-x[..., 4:], x[..., :4]), -1),
        "side_by_side",
        "[4:16] and [0:4] are not the second and the first half of 16 columns",
    ),
    "the first half first": (
        lambda x: torch.cat((-halves(x)[0], halves(x)[1]), -1),
        "side_by_side",
        "[0:8] and [8:16] are not",
    ),
    "interleaved": (
        lambda x: torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2),
        "side_by_side",
        "alternates (interleaved)",
    ),
    "along the heads": (
        lambda x: torch.cat((-x[:, 2:], x[:, :2]), 1),
        "last_dim",
        "another dimension than the last",
    ),
    "joined along another dimension": (
        lambda x: torch.cat((-halves(x)[1], halves(x)[0]), 1),
        "last_dim",
        "another dimension than the last",
    ),
    "the other sign": (lambda x: torch.cat((halves(x)[1], -halves(x)[0]), -1), "negated_first", "is negated"),
    "both signs": (lambda x: torch.cat((-halves(x)[1], -halves(x)[0]), -1), "negated_first", "is negated"),
    "a half that is read": (
        lambda x: (torch.cat((-(hi := halves(x)[1]), halves(x)[0]), -1), hi.exp()),
        "read_alone",
        "is read by others as well",
    ),
    "a part of a head": (lambda x: rotate_half(x[..., :8]), "whole_heads", "8 of 16 columns are rotated"),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("door", shown(DOORS, 1))
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, door: str) -> None:
    function, rule, reason = REFUSED[name]
    found = find_rotations(DOORS[door](Function(function), (X,)).graph)
    assert not found.of
    ((rotation, refused),) = found.refused
    assert isinstance(refused, Rejected) and refused.rule == rule
    assert refused.node == rotation.node.name and reason in refused.reason


def by_name(graph: fx.Graph) -> None:
    """Give all arguments but the first by name."""
    for node in graph.nodes:
        if node.target in JOINS or node.target is aten.slice.Tensor or node.target in SPLITS:
            names = [arg.name for arg in node.target._schema.arguments][1 : len(node.args)]
            node.kwargs, node.args = dict(zip(names, node.args[1:], strict=True)), node.args[:1]


def judged(found: Rotations) -> tuple[object, ...]:
    refused = [(rotation.node, refusal) for rotation, refusal in found.refused]
    return {node: rotation.nodes for node, rotation in found.of.items()}, refused


@pytest.mark.parametrize("name", [*ACCEPTED, *REFUSED])
def test_arguments_may_be_given_by_name(name: str) -> None:
    function = ACCEPTED[name] if name in ACCEPTED else REFUSED[name][0]
    graph = DOORS["aot"](Function(function), (X,)).graph
    before = judged(find_rotations(graph))
    by_name(graph)
    assert any(node.kwargs for node in graph.nodes)
    assert judged(find_rotations(graph)) == before


@pytest.mark.exhaustive
@pytest.mark.parametrize("door", DOORS)
def test_heads_may_be_a_part_of_all_columns(door: str) -> None:
    graph = DOORS[door](
        Function(lambda x: rotate_half(x[..., : 2 * D].reshape(2, 6, 2, D))), (torch.ones(2, 6, 3 * D),)
    )
    found = find_rotations(graph.graph)
    assert found.of and not found.refused


@pytest.mark.parametrize("door", DOORS)
def test_a_negation_of_a_negation_is_none(door: str) -> None:
    twice = Function(lambda x: torch.cat((halves(x)[1].neg().neg(), -halves(x)[0]), -1))
    ((_, refused),) = find_rotations(DOORS[door](twice, (X,)).graph).refused
    assert refused.rule == "negated_first"


def test_what_is_no_rotation_at_all_is_not_mentioned() -> None:
    for function in (lambda x: torch.cat((x, x), -1), lambda x: torch.cat((-x, x), -1), lambda x: -halves(x)[0]):
        found = find_rotations(DOORS["aot"](Function(function), (X,)).graph)
        assert (found.of, found.refused) == ({}, ())


def test_every_rule_refuses_something() -> None:
    assert {rule.__name__ for rule in RULES} == {rule for _, rule, _ in REFUSED.values()}
