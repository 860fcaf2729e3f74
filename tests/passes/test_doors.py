"""One form through every door: chains, ends and norms of a plan made through one are those of every other."""

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch._dynamo.exc import BackendCompilerFailed
from torch._inductor.compile_fx import compile_fx
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.nn import functional as F

import fusioncc
from fusioncc.chain import Chain
from fusioncc.config import Options
from fusioncc.decision import Accepted
from fusioncc.device import get_device
from fusioncc.passes.erase_checks import CHECK, erase_checks
from fusioncc.passes.find_chains import MAX_OPS, find_chains
from fusioncc.passes.plan_groups import Setting
from fusioncc.passes.read_chains import read_chain
from fusioncc.passes.read_ops import pieces
from fusioncc.passes.taken_apart import taken_apart
from fusioncc.pipeline import draft
from tests.codegen.pointwise_cases import DTYPES, Case, Tensor, binary_cases, number_cases, unary_cases
from tests.passes.chain_graphs import Function, bf16
from tests.passes.doors import DOORS
from tests.shown import shown

aten = torch.ops.aten
OPERANDS = [("bf16", "bf16"), ("fp32", "fp32"), ("fp32", "bf16"), ("int32", "int32")]


def computed(case: Case) -> bool:
    """Whether torch has the op for these dtypes, and Inductor as well."""
    if case.target == "aten.add.Scalar" and case.args[2] != 1:  # its way of a sum has no such argument
        return False
    try:
        case.eager("cpu")
    except (RuntimeError, NotImplementedError):
        return False
    return True


def made(graph: fx.Graph) -> list[Any]:
    """What a graph returns."""
    results: Any = graph.output_node().args[0]
    return list(results)


@cache
def graphs_of(first: str, second: str) -> tuple[list[Case], dict[str, fx.Graph]]:
    """All cases of ops with tensors of these dtypes, and their graph through each door."""
    every = (*unary_cases(first), *number_cases(first), *binary_cases(first, second))
    cases = [case for case in dict.fromkeys(every) if computed(case)]
    operands = list(dict.fromkeys(arg for case in cases for arg in case.args if isinstance(arg, Tensor)))

    def function(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = dict(zip(operands, tensors, strict=True))
        return tuple(case.call(given) for case in cases)

    args = tuple(torch.ones((8, 16) if arg.role != "scalar" else (), dtype=DTYPES[arg.dtype]) for arg in operands)
    return cases, {door: capture(Function(function), args).graph for door, capture in DOORS.items()}


def forms(graph: fx.Graph) -> dict[fx.Node, Chain]:
    """The chain that makes each value that a graph returns."""
    order = {node: at for at, node in enumerate(graph.nodes)}
    found = find_chains(graph, least=1).chains
    chains = [(nodes, read_chain(nodes, order, "").signature()) for nodes in found]
    return {node: chain for nodes, chain in chains for node in nodes if graph.output_node() in node.users}


@pytest.mark.parametrize("operands", shown(OPERANDS, 1))
def test_every_op_is_the_same_chain(operands: tuple[str, str]) -> None:
    first, second = operands
    cases, graphs = graphs_of(first, second)
    found = {door: forms(graph) for door, graph in graphs.items()}
    compared = set()
    for at, case in enumerate(cases):
        one, *others = (found[door].get(made(graph)[at]) for door, graph in graphs.items())
        assert all(other == one for other in others), f"{case}: {one} and {others}"
        compared |= {case.target} if one is not None else set()
    assert len(compared) >= 60


def ops_of(graph: fx.Graph, result: Any) -> list[str]:
    """The ops that make a value, casts under one name."""
    waiting, seen = [result], dict[fx.Node, None]()
    while waiting:
        node = waiting.pop()
        if isinstance(node, fx.Node) and node.op == "call_function" and node not in seen:
            seen[node] = None
            waiting += node.all_input_nodes
    return sorted(str(node.target).replace("prims.convert_element_type", "aten._to_copy") for node in seen)


def test_doors_take_many_ops_apart_in_ways_of_their_own() -> None:
    """What makes the test above one that can fail."""
    cases, graphs = graphs_of("bf16", "bf16")
    ways = {case: [ops_of(graph, made(graph)[at]) for graph in graphs.values()] for at, case in enumerate(cases)}
    differing = {case.name for case, (one, *others) in ways.items() if any(other != one for other in others)}
    assert differing >= {"silu", "gelu", "leaky_relu", "hardswish", "mish", "clamp", "rsub", "masked_fill", "lerp"}


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "activations that share a cast": lambda x, y: F.silu(x) * F.gelu(x, approximate="tanh") * y,
    "layer norm": lambda x, y: F.layer_norm(x, (16,), y[0]) + 1,
    "rms norm": lambda x, y: F.rms_norm(x, (16,), y[0], 1e-6) * y,
    "softmax": lambda x, y: (x * y).softmax(-1) * 2,
    "constants": lambda x, y: torch.where(x > 0, y, x.new_ones(8, 16)) * torch.where(y > 0, torch.zeros(8, 16), 2.0),
    "a condition": lambda x, y: x.masked_fill(y > 0, -1.0) + y.clamp(0, 1),
    "a quantise": lambda x, y: (F.hardswish(x) * y).clamp(-448, 448).to(torch.float8_e4m3fn),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_chains_are_the_same(name: str) -> None:
    args = (torch.ones(8, 16, dtype=torch.bfloat16), torch.ones(8, 16, dtype=torch.bfloat16))
    one, *others = (set(forms(capture(Function(FUNCTIONS[name]), args).graph).values()) for capture in DOORS.values())
    assert len(one) == 1 and all(other == one for other in others)


class Seen(RuntimeError):
    """The graph is there; nothing has to be compiled."""


def behind_inductor(model: nn.Module, args: tuple[Any, ...]) -> fx.Graph:
    """The graph that Inductor gives to a pass in front of its own, behind those on the joint graph."""
    seen: list[fx.Graph] = []

    class Record(CustomGraphPass):
        def __call__(self, graph: fx.Graph) -> None:
            seen.append(graph)
            raise Seen

        def uuid(self) -> None:
            return None

    def backend(module: fx.GraphModule, inputs: list[Any]) -> Any:
        return compile_fx(module, inputs, config_patches={"post_grad_custom_pre_pass": Record()})

    torch.compiler.reset()
    with torch.no_grad(), pytest.raises(BackendCompilerFailed, match="Seen"):
        torch.compile(model, backend=backend, fullgraph=True, dynamic=False)(*args)
    (graph,) = seen
    return graph


class Block(nn.Module):
    """A gated MLP behind a norm, which is ``whole`` or written out, in bf16; q and k end with a GELU of either."""

    def __init__(self, *, whole: bool) -> None:
        super().__init__()
        self.norm, self.whole = nn.RMSNorm(64, 1e-6), whole
        self.gate, self.up, self.q, self.k = (nn.Linear(64, 64, bias=False) for _ in range(4))
        self.bfloat16().requires_grad_(False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        wide = x.float()
        root = torch.rsqrt((x.float() * x.float()).mean(-1, keepdim=True) + 1e-6)
        normed = self.norm(x) if self.whole else self.norm.weight * (wide * root).to(x.dtype)
        y = x.flip(0)
        return F.silu(self.gate(normed)) * self.up(normed), F.gelu(self.q(y)), F.leaky_relu(self.k(y), 0.3)


PLANNING = {"norms": "always", "epilogues": "always", "on_error": "raise", "rest": "eager"}
SETTING = Setting(Options.of(PLANNING), get_device("h200"), Accepted("runnable", ("offline",)))
BEHIND = {**{door: lambda model, args, door=door: DOORS[door](model, args).graph for door in DOORS}}
BEHIND["behind inductor"] = behind_inductor


@pytest.mark.parametrize("whole", [True, False])
def test_a_plan_made_through_any_door_is_applied_through_any_other(whole: bool) -> None:
    model, x = Block(whole=whole), torch.ones(16, 64, dtype=torch.bfloat16)
    graphs = {door: capture(model, (x,)) for door, capture in BEHIND.items()}
    plans = {door: draft(graph, SETTING).plan for door, graph in graphs.items()}
    for made_by, plan in plans.items():
        normed, plain = plan.groups
        assert normed.norm is not None and len(normed.epilogues) == 1 and len(plain.epilogues) == 2
        for applied_by, graph in graphs.items():
            applied = draft(graph, replace(SETTING, given=plan)).plan
            for ours, theirs in zip(applied.groups, plan.groups, strict=True):
                assert ours.group.signature() == theirs.group.signature(), f"{made_by}, {applied_by}"
                assert ours.schedule == theirs.schedule


def test_a_chain_of_a_plan_is_claimed_through_any_other_door() -> None:
    args = (bf16(8, 16), bf16(8, 16))
    chosen = replace(SETTING, options=Options.of({"chains": "always", "rest": "eager"}))
    model = Function(FUNCTIONS["activations that share a cast"])
    graphs = {door: capture(model, args).graph for door, capture in DOORS.items()}
    plans = [draft(graph, chosen).plan for graph in graphs.values()]
    for plan, graph in itertools.product(plans, graphs.values()):
        (chain,) = draft(graph, replace(chosen, given=plan)).plan.chains
        assert chain.claimed and chain.why == "as planned"


def test_in_the_tier_eager_ops_are_read_as_they_stand() -> None:
    """Where eager runs the rest it runs them whole, and rounds as they do."""
    graph = DOORS["aot"](Function(lambda x, y: F.silu(x) * y), (bf16(8, 16), bf16(8, 16))).graph
    chosen = replace(SETTING, options=Options.of({"numerics": "eager", "chains": "always", "rest": "eager"}))
    (exact,) = draft(graph, chosen).plan.chains
    assert [op.stem for op in exact.ops] == ["silu", "mul"] and exact.tier == "eager"
    relaxed = replace(chosen, options=Options.of({"chains": "always", "rest": "eager"}))
    (again,) = draft(graph, replace(relaxed, given=draft(graph, chosen).plan)).plan.chains
    assert again.claimed and again.chain.signature() == exact.chain.signature()


def test_an_op_that_stays_whole_counts_as_what_it_is_read_as() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = F.gelu(x)
        return x

    graph = DOORS["aot"](Function(function), (bf16(8, 16),)).graph
    order = {node: at for at, node in enumerate(graph.nodes)}
    sizes = [len(read_chain(nodes, order, "").ops) for nodes in find_chains(graph).chains]
    assert len(sizes) == 2 and max(sizes) <= MAX_OPS
    assert len(find_chains(graph, exact=True).chains) == 1


def test_what_cannot_be_read_is_left_whole() -> None:
    """There is nothing to take apart, or a size is symbolic."""
    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(Function(F.silu), (torch.ones(8, 16),), dynamic_shapes=(({0: rows},),))
    (node,) = (node for node in program.graph.nodes if node.target is aten.silu.default)
    assert taken_apart(node.target, list(node.args)) is None
    graph = DOORS["aot"](Function(lambda x: F.silu(x) + x.relu()), (bf16(8, 16),)).graph
    read = {node.name: pieces(node) for node in graph.nodes if node.op == "call_function"}
    assert read["silu"] is not None and read["relu"] is None and read["add"] is None


def test_what_export_checks_keeps_nothing_apart() -> None:
    """Of what is cast an exported program asserts the dtype, in a node that reads it."""
    model, x = Block(whole=False), torch.randn(16, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    program = torch.export.export(model, (x,))
    assert CHECK in {node.target for node in program.graph.nodes}
    torch.compiler.reset()
    run = fusioncc.optimize(program, **PLANNING)
    with torch.no_grad():
        torch.testing.assert_close(run(x), model(x), rtol=2e-2, atol=2e-2)
    (plan,) = fusioncc.plan_of(run)
    normed, plain = plan.groups
    assert normed.norm is not None and len(normed.epilogues) == 1 and len(plain.epilogues) == 2
    offline = fusioncc.plan(program, **PLANNING)
    assert [each.group.signature() for each in offline.groups] == [each.group.signature() for each in plan.groups]


@pytest.mark.parametrize(
    ("said", "erased"),
    [
        ({"dtype": torch.bfloat16, "device": "cpu", "layout": torch.strided}, True),
        ({}, True),
        ({"dtype": torch.float32}, False),
        ({"device": "cuda"}, False),
        ({"size": [8, 16]}, False),
    ],
)
def test_a_check_is_erased_where_it_holds_of_every_call(said: dict[str, Any], erased: bool) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.ones(8, 16, dtype=torch.bfloat16)
    graph.call_function(CHECK, (x,), said)
    erase_checks(graph)
    assert (len(graph.nodes) == 1) == erased


def test_zeros_of_either_sign_are_two_constants() -> None:
    """In one process, where what an op is made of is remembered."""
    x = torch.tensor([0.25, 1.0])
    for zero in (0.0, -0.0):
        model = Below(zero)
        compiled = fusioncc.optimize(model, rest="eager", chains="always", on_error="raise")
        assert torch.equal(compiled(x), model(x)), zero


class Below(nn.Module):
    """The sign of the zero that small values become."""

    def __init__(self, zero: float) -> None:
        super().__init__()
        self.zero = zero

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 1 / (F.threshold(x, 0.5, self.zero) * 2)


def test_ops_are_taken_apart_in_several_threads() -> None:
    x = torch.empty(4, 8, device="meta")
    sizes = [torch.empty(rows, 8, device="meta") for rows in range(2, 18)]
    graphs = [DOORS["aot"](Below(0.0), (each,)).graph for each in (x, *sizes)]
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda graph: [pieces(each) is not None for each in list(graph.nodes)[1:-1]], graphs))
    assert all(each == made[0] for each in made) and any(made[0])


def test_a_given_plan_finds_a_chain_around_a_whole_normalisation() -> None:
    model, x = nn.Sequential(nn.LayerNorm(64), nn.GELU()).eval(), torch.randn(8, 64)
    options = {"rest": "eager", "chains": "always", "on_error": "raise"}
    with torch.no_grad():
        first = fusioncc.optimize(model, **options)
        first(x)
        (plan,) = fusioncc.plan_of(first)
        again = fusioncc.optimize(model, plan=plan, **options)
        torch.testing.assert_close(again(x), model(x))
    assert [chain.claimed for chain in plan.chains] == [True]
    assert [chain.claimed for each in fusioncc.plan_of(again) for chain in each.chains] == [True]
