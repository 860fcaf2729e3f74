"""Plan chains: which chains of elementwise ops become kernels of their own, and why.

Without Inductor every chain that is predicted to save time is claimed. Beside Inductor, which fuses elementwise ops
itself and reaches what the memory gives, a chain of its own is left to it, unless the user asks.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial

from torch import fx

from fusioncc.autotune.chain_tile import chain_tile
from fusioncc.chain import Chain, ChainTile
from fusioncc.codegen.chain import check_chain, check_tile, emit_chain
from fusioncc.codegen.launch import EmittedModule
from fusioncc.cost_models.chain_cost import chain_costs
from fusioncc.decision import Rejected, accepted_with
from fusioncc.errors import EmissionError, FusionError, PlanError
from fusioncc.graph import gaps_may_close, is_backward, rows_may_be_padded
from fusioncc.operand import Operand
from fusioncc.passes.attempt import attempted
from fusioncc.passes.find_chains import find_chains
from fusioncc.passes.plan_groups import TIERS, Setting
from fusioncc.passes.read_chains import read_chain
from fusioncc.plan import ChainPlan
from fusioncc.seam import translated

FP8_CAPABILITY = {"fp8e4m3": 89, "fp8e5m2": 89}
"""First compute capability that converts to and from a dtype."""

Claim = tuple[bool, str]
"""Whether a chain becomes a kernel of its own, and why."""
FLUSHED = "the tier 'eager' needs an option of the launch that Inductor does not pass on: denormal numbers stay"


@dataclass(frozen=True)
class PlannedChains:
    """Every chain with its decision, the modules by kernel, and what was refused."""

    chains: tuple[ChainPlan, ...]
    modules: dict[str, EmittedModule]
    rejections: tuple[Rejected, ...]


def plan_chains(graph: fx.Graph, setting: Setting, taken: Iterable[Collection[fx.Node]]) -> PlannedChains:
    """A decision for every chain of a graph; ``taken`` are the nodes of each fused group.

    Raises:
        FusionError: reading or emitting a chain failed; the message names it and the cause.
    """
    if is_backward(graph) or setting.options.chains == "never":
        return PlannedChains((), {}, ())
    found = find_chains(graph, taken, exact=setting.options.numerics == "eager")
    by_name = {node.name: node for node in graph.nodes}
    order = {node: at for at, node in enumerate(graph.nodes)}
    planner = _Planner(setting, list(found.rejections))

    def add(name: str, nodes: Sequence[fx.Node]) -> None:
        def read(exact: bool) -> Chain:
            reading = partial(read_chain, nodes, order, name, exact=exact)
            return translated(f"reading {name} failed", reading, FusionError)

        planner.add(read, by_name)

    for at, nodes in enumerate(found.chains):
        name = f"chain{at}"
        failed = attempted(partial(add, name, nodes), setting, ("chain_emission", name), "the chain is left as it was")
        planner.rejections += [] if failed is None else [failed]
    return PlannedChains(tuple(planner.chains), planner.modules, tuple(planner.rejections))


@dataclass
class _Planner:
    setting: Setting
    rejections: list[Rejected]
    chains: list[ChainPlan] = field(default_factory=list)
    modules: dict[str, EmittedModule] = field(default_factory=dict)
    names: dict[tuple[Chain, ChainTile, str], str] = field(default_factory=dict)

    def add(self, read: Callable[[bool], Chain], by_name: Mapping[str, fx.Node]) -> None:
        """Decide on a chain, and emit its module where it is claimed, equal chains once. ``read`` gives the form that
        the nodes have through every door, or that in which they stand, whose roundings the tier ``eager`` has."""
        forms = {"fp32": read(False)}
        exact, given = self.setting.options.numerics == "eager", self.setting.given
        if exact or (given is not None and any(each.tier == "eager" for each in given.chains)):
            forms["eager"] = read(True)
        wanted = _of_plan(forms, self.setting)
        tier = wanted.tier if wanted else "eager" if exact else "fp32"
        chain = forms.get(tier, forms["fp32"])
        refused = chain_refusal(chain, self.setting, tier)
        if refused is not None:
            self.rejections.append(refused)
            return
        tile = wanted.tile if wanted else chain_tile(chain, self.setting.device)
        kernel = self.names.setdefault((chain.signature(), tile, tier), _name(len(self.names), chain))
        claim = partial(_claim, self.setting, wanted, tier, relaid(chain.inputs, by_name))
        decided = _decide(chain, self.setting, tile, tier, kernel, claim)
        if decided.claimed and kernel not in self.modules:
            self.modules[kernel] = chain_module(decided)
        self.chains.append(decided)


def chain_module(planned: ChainPlan) -> EmittedModule:
    """The module of a chain that was decided on, claimed or not.

    Raises:
        EmissionError: it cannot be emitted.
    """
    action = partial(emit_chain, planned.chain, planned.tile, name=planned.kernel, tier=planned.tier, why=planned.why)
    return translated(f"the emitter failed on {planned.name}", action, EmissionError)


def _of_plan(forms: Mapping[str, Chain], setting: Setting) -> ChainPlan | None:
    """What a plan made elsewhere says of a chain in one of its ``forms``, its tile and tier held to what they may be.

    Raises:
        PlanError: they may not be that.
    """
    every = setting.given.chains if setting.given is not None else ()
    known = [chain.signature() for chain in forms.values()]
    wanted = next((each for each in every if each.chain.signature() in known), None)
    if wanted is None:
        return None
    if wanted.tier not in TIERS or TIERS.index(wanted.tier) > TIERS.index(setting.options.numerics):
        allowed = f"numerics={setting.options.numerics!r}"
        raise PlanError(f"{wanted.name}: the plan's tier {wanted.tier!r} is not allowed under {allowed}")
    try:
        check_tile(forms.get(wanted.tier, forms["fp32"]), wanted.tile)
    except EmissionError as error:
        raise PlanError(f"{wanted.name}: the plan's tile is illegal here: {error}") from error
    return wanted


def chain_refusal(chain: Chain, setting: Setting, tier: str) -> Rejected | None:
    """Why no kernel is made of a chain."""
    first = chain.ops[0].node
    for dtype in chain.dtypes:
        least = FP8_CAPABILITY.get(dtype, 0)
        if setting.device.capability < least:
            reason = f"{dtype} needs compute capability {least}, {setting.device.name} has {setting.device.capability}"
            return Rejected("chain_dtype", first, reason)
    try:
        check_chain(chain, tier)
    except EmissionError as error:
        return Rejected("chain_emission", first, str(error), "numerics='fp32' allows sums in another order")
    return None


def _decide(
    chain: Chain, setting: Setting, tile: ChainTile, tier: str, kernel: str, claim: Callable[[float, float], Claim]
) -> ChainPlan:
    before, after = chain_costs(chain, setting.device)
    claimed, why = claim(before.us, after.us)
    return ChainPlan(
        **{each.name: getattr(chain, each.name) for each in fields(Chain)},
        tile=tile,
        tier=tier,
        claimed=claimed,
        why=why,
        before=before.footprint,
        after=after.footprint,
        before_us=before.us,
        after_us=after.us,
        before_kept_bytes=before.kept_bytes,
        after_kept_bytes=after.kept_bytes,
        kernel=kernel,
    )


def _claim(
    setting: Setting, wanted: ChainPlan | None, tier: str, relaid: str, before_us: float, after_us: float
) -> Claim:
    """Whether a chain becomes a kernel of its own, and why. ``wanted``: what a plan made elsewhere says of it.
    ``relaid``: why Inductor may lay out its inputs in another way than the kernel reads them."""
    times = f"predicted {after_us:.1f} us in one kernel, {before_us:.1f} us op by op"
    beside = setting.options.rest == "inductor" and not accepted_with(setting.runnable, "interpreter")
    if isinstance(setting.runnable, Rejected):
        return False, f"{setting.runnable.reason}; {times}"
    if beside and (relaid or tier == "eager"):
        return False, f"{relaid or FLUSHED}; {times}"
    if setting.given is not None:
        return (wanted.claimed, "as planned") if wanted else (False, "the plan has no such chain")
    if setting.options.chains == "always":
        return True, f"chains='always'; {times}"
    if beside:
        return False, f"Inductor fuses it too, as fast as the memory allows; {times}"
    if accepted_with(setting.runnable, "interpreter"):
        return False, f"Triton's interpreter is slower than ATen; {times}"
    return (True, times) if after_us < before_us else (False, f"no gain: {times}")


def relaid(operands: Iterable[Operand], by_name: Mapping[str, fx.Node]) -> str:
    """The first of them, if any, of which Inductor may change the strides."""
    for operand in operands:
        node = by_name[operand.node]
        if gaps_may_close(node) or rows_may_be_padded(node):
            return f"Inductor may store {operand.node} with other strides"
    return ""


def _name(index: int, chain: Chain) -> str:
    """``c0_silu_mul_1024x12288``: position, the first and the last op, shape."""
    ops = [op.stem for op in chain.ops if "convert" not in op.target and "copy" not in op.target] or ["cast"]
    ends = ops[:1] if len(ops) == 1 else [ops[0], ops[-1]]
    return "_".join([f"c{index}", *ends, "x".join(map(str, chain.shape)) or "scalar"])


def as_unclaimed(planned: ChainPlan, why: str) -> ChainPlan:
    """The chain left as it was, because of ``why``."""
    return replace(planned, claimed=False, why=why, insertion="")
