"""Every rule on a hand-made graph that it accepts, and on one changed so that it refuses: rule, node and reason."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses import FakeTensorMode

from fusioncc.decision import Decision, Rejected
from fusioncc.passes.branch_rules import BRANCH_RULES, BranchFacts
from fusioncc.passes.canonicalize import canonicalize
from fusioncc.passes.find_branches import Scale, find_branches
from fusioncc.passes.find_regions import find_regions
from fusioncc.passes.near_miss_rules import NEAR_MISS_RULES, NearMiss
from fusioncc.passes.region_rules import REGION_RULES, RegionFacts, barriers_of

aten = torch.ops.aten
M, K, N, R = 6, 64, 96, 4


class Build:
    """A graph of ``x @ w + (x @ a) @ b`` with fake tensors; ``between`` adds nodes before the sum."""

    def __init__(self, between: Callable[["Build"], None] = lambda build: None) -> None:
        self.mode, self.graph = FakeTensorMode(), fx.Graph()
        for name, shape in {"x": (M, K), "w": (K, N), "a": (K, R), "b": (R, N)}.items():
            self.put(name, shape)
        self.main, self.down = self.call(aten.mm.default, "x", "w"), self.call(aten.mm.default, "x", "a")
        self.up = self.call(aten.mm.default, self.down, "b")
        between(self)
        self.total = self.call(aten.add.Tensor, self.main, self.up)
        self.graph.output(self.total)

    def node(self, name: str) -> fx.Node:
        return next(node for node in self.graph.nodes if node.name == name)

    def put(self, name: str, shape: tuple[int, ...]) -> None:
        with self.mode:
            self.graph.placeholder(name).meta["val"] = torch.empty(shape)

    def call(self, target: Any, *args: Any) -> fx.Node:
        nodes = tuple(self.node(arg) if isinstance(arg, str) else arg for arg in args)
        name = target._schema.name.split("::")[1]
        made = self.graph.create_node("call_function", target, nodes, name=name)
        with self.mode:
            made.meta["val"] = target(*(arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in nodes))
        return made

    def change(self, name: str, make: Callable[[], torch.Tensor]) -> None:
        with self.mode:
            self.node(name).meta["val"] = make()


def branch_facts(build: Build) -> BranchFacts:
    gemms = canonicalize(build.graph)
    main = next(gemm for gemm in gemms if gemm.node is build.main)
    (branch,) = find_branches(gemms).values()
    inner = {build.main, build.down, build.up, build.total}
    return BranchFacts(main, branch, Scale(), inner, {build.down}, build.total, set(), 0.25)


def region_facts(build: Build) -> RegionFacts:
    gemms = canonicalize(build.graph)
    regions, _ = find_regions(gemms, find_branches(gemms), 0.25)
    region = next(region for region in regions if region.branches)
    order = {node: at for at, node in enumerate(build.graph.nodes)}
    return RegionFacts(region, build.node("x"), order, barriers_of(build.graph))


def near_miss(build: Build, **changes: Any) -> NearMiss:
    main, down, up = (gemm for gemm in canonicalize(build.graph) if gemm.node in (build.main, build.down, build.up))
    return replace(NearMiss(main, down, up, (), (), (), build.total), **changes)


def _relu(name: str) -> NearMiss:
    """A relu behind one of the products, which its sum or the up product would read."""
    made: list[fx.Node] = []
    build = Build(lambda build: made.append(build.call(aten.relu.default, getattr(build, name))))
    stretch = {"down": "inner", "up": "behind_up", "main": "behind_main"}[name]
    return near_miss(build, **{stretch: tuple(made)})


def _main_read_elsewhere() -> NearMiss:
    return near_miss(Build(lambda build: build.call(aten.relu.default, build.main)))


def _scaled(stretch: str, name: str) -> NearMiss:
    made: list[fx.Node] = []
    build = Build(lambda build: made.append(build.call(aten.mul.Tensor, getattr(build, name), 2.0)))
    return near_miss(build, **{stretch: tuple(made)})


def with_main(facts: RegionFacts, **changes: Any) -> RegionFacts:
    return replace(facts, region=replace(facts.region, main=replace(facts.region.main, **changes)))


def with_down(facts: RegionFacts, saved: bool, **changes: Any) -> RegionFacts:
    (joined,) = facts.region.branches
    branch = replace(joined.branch, down=replace(joined.branch.down, **changes))
    return replace(facts, region=replace(facts.region, branches=(replace(joined, branch=branch, saved=saved),)))


def _other_lhs() -> BranchFacts:
    facts = branch_facts(Build())
    return replace(facts, branch=replace(facts.branch, lhs_key="another value"))


def _biased_and_scaled() -> BranchFacts:
    build = Build(lambda build: build.put("c", (R,)))
    facts = branch_facts(build)
    branch = replace(facts.branch, down=replace(facts.branch.down, bias=build.node("c")))
    return replace(facts, branch=branch, on_up=Scale(1.0, (build.node("c"),)))


def _up_read_elsewhere() -> BranchFacts:
    return branch_facts(Build(lambda build: build.call(aten.relu.default, build.up)))


def _taken() -> BranchFacts:
    facts = branch_facts(Build())
    return replace(facts, taken={facts.branch.down.node})


def _fp64_weight() -> RegionFacts:
    build = Build()
    build.change("w", lambda: torch.empty(K, N, dtype=torch.float64))
    return region_facts(build)


def _weight_elsewhere() -> RegionFacts:
    build = Build()
    build.change("b", lambda: torch.empty(R, N, device="meta"))
    return region_facts(build)


def _sum_by_columns() -> RegionFacts:
    build = Build()
    build.change("add", lambda: torch.empty_strided((M, N), (1, M)))
    return region_facts(build)


def _bias_over_rows() -> RegionFacts:
    build = Build(lambda build: build.put("c", (1,)))
    return with_main(region_facts(build), bias=build.node("c"))


def _mutated_weight() -> RegionFacts:
    return region_facts(Build(lambda build: build.call(aten.neg_.default, "b")))


def _mutated_before() -> RegionFacts:
    build = Build()
    with build.graph.inserting_before(build.main):
        build.call(aten.neg_.default, "x")
    return region_facts(build)


def _operand_from_down() -> RegionFacts:
    build = Build()
    with build.graph.inserting_before(build.up):
        total = build.call(aten.sum.default, build.down)
        build.up.args = (build.down, build.call(aten.mul.Tensor, "b", total))
    return region_facts(build)


@dataclass(frozen=True)
class Case:
    """A rule, facts that it accepts (None: the plain graph), facts that it refuses, at which node, in which words."""

    rule: str
    refused: Callable[[], Any]
    node: str
    words: str
    accepted: Callable[[], Any] | None = None


CASES = (
    Case("same_lhs", _other_lhs, "mm_1", "not the same value"),
    Case(
        "low_rank", lambda: replace(branch_facts(Build()), max_rank_fraction=0.05), "mm_1", "rank 4 is more than 0.05"
    ),
    Case(
        "same_shape",
        lambda: replace(branch_facts(Build()), main=replace(branch_facts(Build()).main, m=7)),
        "mm_2",
        "M of the branch (6) is not provably that of the main product (7)",
    ),
    Case("scale_order", _biased_and_scaled, "mm_1", "a bias and the tensor scale c"),
    Case("joined_once", _taken, "mm_1", "another main member"),
    Case("single_user", _up_read_elsewhere, "mm_2", "mm_2 is also read by relu"),
    Case("dtypes", _fp64_weight, "w", "fp64 tensors have no emitted form"),
    Case("one_device", _weight_elsewhere, "b", "b is on meta, X on cpu"),
    Case("sizes", lambda: with_main(region_facts(Build()), n=0), "mm", "N is 0"),
    Case("sizes", lambda: with_main(region_facts(Build()), batch=0), "mm", "the batch is 0"),
    Case("plain_main", lambda: with_main(region_facts(Build()), alpha=2.0), "mm", "alpha=2"),
    Case("bias", _bias_over_rows, "c", "a bias of shape (1,)"),
    Case("layout", _sum_by_columns, "add", "not stored row by row"),
    Case("no_barrier", _mutated_weight, "neg_", "a mutation (neg_) stands before the sum"),
    Case("no_barrier", _mutated_before, "neg_", "a mutation (neg_) stands before the sum"),
    Case("independent", _operand_from_down, "mm_1", "computed from mm_1, which it makes"),
    Case(
        "saved_products",
        lambda: with_down(region_facts(Build()), True, alpha=2.0),
        "mm_1",
        "reads the down product of a scaled X",
        lambda: with_down(region_facts(Build()), True),
    ),
    Case("linear_branch", lambda: _relu("down"), "relu", "relu stands between", lambda: _scaled("inner", "down")),
    Case("plain_sum", lambda: _relu("up"), "relu", "relu stands between", lambda: _scaled("behind_up", "up")),
    Case("plain_sum", lambda: _relu("main"), "relu", "relu stands between the main product mm"),
    Case("plain_sum", lambda: _scaled("behind_main", "main"), "mul", "mul scales mm"),
    Case("unshared_main", _main_read_elsewhere, "mm", "mm is also read by relu"),
)

NAMES = {"one_element_per_column": "bias"}
"""Rules whose decisions carry a shorter name than the function."""
RULES = {NAMES.get(rule.__name__, rule.__name__): rule for rule in (*BRANCH_RULES, *REGION_RULES, *NEAR_MISS_RULES)}


def decide(case: Case, facts: Any) -> Decision:
    return RULES[case.rule](facts)


def test_every_rule_has_a_case() -> None:
    assert {case.rule for case in CASES} == set(RULES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_rule_accepts(case: Case) -> None:
    facts_of = ((BRANCH_RULES, branch_facts), (REGION_RULES, region_facts), (NEAR_MISS_RULES, near_miss))
    plain = next(facts for rules, facts in facts_of if RULES[case.rule] in rules)
    decision = decide(case, case.accepted() if case.accepted else plain(Build()))
    assert decision
    assert decision.rule == case.rule


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_rule_refuses(case: Case) -> None:
    decision = decide(case, case.refused())
    assert isinstance(decision, Rejected)
    assert (decision.rule, decision.node) == (case.rule, case.node)
    assert case.words in decision.reason
