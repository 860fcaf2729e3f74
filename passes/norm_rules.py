"""Norm rules: when the tiles of a group may carry out the norm that makes its X."""

from dataclasses import dataclass

from torch import fx

from fusioncc.codegen.norm_rules import NORMED_DTYPES
from fusioncc.decision import Accepted, Decision, Rejected
from fusioncc.graph import (
    dtype_of,
    forms_of,
    is_aligned,
    is_exact_cast,
    is_static,
    keeps_order,
    matrix_strides,
    readers,
    same_size,
    tensor,
)
from fusioncc.group import EMITTED_DTYPES, Group, Norm, Operand
from fusioncc.passes.find_norms import FoundNorm


@dataclass(frozen=True)
class InFront:
    """A norm that makes the X of a group. ``relaid``: why strides of what it reads are not known, where they are not.

    Nothing is written in place between the two: a group is none where something is written in front of its products.
    """

    group: Group
    found: FoundNorm
    covered: frozenset[fx.Node]
    tier: str
    relaid: str = ""

    @property
    def x(self) -> Operand | None:
        """What the tiles read in the place of X; None where it is no matrix in memory."""
        value, shape = tensor(self.found.x), self.group.lhs.shape
        strides = None if value is None else matrix_strides(value)
        if strides is None:
            return None
        return Operand(self.found.x.name, shape, strides, dtype_of(self.found.x), is_aligned(self.found.x))

    @property
    def weight(self) -> Operand | None:
        """The weight as a vector; None where it is none, or one that kernels do not read."""
        node = None if self.found.weight is None else _vector(self.found.weight)
        value = None if node is None else tensor(node)
        if node is None or value is None or not is_static(value.stride(0)) or dtype_of(node) not in EMITTED_DTYPES:
            return None
        return Operand(node.name, (self.group.k,), (int(value.stride(0)),), dtype_of(node), is_aligned(node))

    @property
    def norm(self) -> Norm:
        found = self.found
        return Norm(self.group.lhs, found.epsilon, self.weight, found.rounded and self.group.lhs.dtype != "fp32")


def _vector(node: fx.Node) -> fx.Node | None:
    """The one-dimensional tensor that a node of one row is, in its narrowest dtype; None where there is none."""
    while keeps_order(node) or is_exact_cast(node):
        node = node.args[0]  # type: ignore[assignment]
    value = tensor(node)
    return node if value is not None and value.dim() == 1 else None


def rounding_tier(front: InFront) -> Decision:
    """Rows may be scaled behind the product, not before it."""
    if front.tier == "eager":
        why = "tiles scale rows behind the product, and eager rounds X before it; numerics='fp32' allows that"
        return Rejected("rounding_tier", front.found.node.name, why)
    return Accepted("rounding_tier")


def fp32_squares(front: InFront) -> Decision:
    """The mean of the squares is that of fp32, as tiles sum it."""
    if front.found.squares != "fp32":
        why = f"squares are averaged in {front.found.squares}, by tiles in fp32"
        return Rejected("fp32_squares", front.found.node.name, why)
    return Accepted("fp32_squares")


def in_range(front: InFront) -> Decision:
    """``x * weight`` is in the range of the dtype in which it is multiplied: the one of x and of X."""
    x, normed = dtype_of(front.found.x), front.group.lhs.dtype
    if x != normed:
        return Rejected("in_range", front.found.node.name, f"x is {x} and X {normed}: tiles read one dtype")
    if x not in NORMED_DTYPES:
        why = f"x times weight may pass the range of {x}, in which the normed X always is"
        return Rejected("in_range", front.found.node.name, why)
    return Accepted("in_range")


def one_weight(front: InFront) -> Decision:
    """The weight, where there is one, is a vector in memory."""
    if front.found.weight is not None and front.weight is None:
        why = f"the weight is no vector of {front.group.k} elements of a dtype that kernels read"
        return Rejected("one_weight", front.found.weight.name, why)
    return Accepted("one_weight")


def same_rows(front: InFront) -> Decision:
    """x is a matrix of the shape of X, whose strides stay what they are."""
    value, normed = tensor(front.found.x), tensor(front.found.node)
    assert value is not None and normed is not None
    if not same_size(value.numel(), normed.numel()) or front.x is None:
        why = "x is not a matrix with static strides, nor contiguous"
        return Rejected("same_rows", front.found.x.name, why)
    if front.relaid:
        return Rejected("same_rows", front.found.x.name, front.relaid)
    return Accepted("same_rows")


def normed_alone(front: InFront) -> Decision:
    """Nothing but the products of the group reads the normed X, nor anything that the norm makes on the way."""
    operands = {each.node for each in front.group.operands if each != front.group.lhs}
    ends = {op.node for end in front.group.epilogues for op in end.chain.ops}
    inside = front.found.nodes | {node for node in front.covered if node.name not in ends}
    for node in sorted(front.found.nodes):
        if operands & {each.name for each in forms_of(node)}:
            why = f"the group reads {node.name} as another operand too"
            return Rejected("normed_alone", node.name, why)
        other = next((reader for reader in readers(node) if reader not in inside), None)
        if other is not None:
            why = f"{other.name} reads {node.name} too: the norm has a kernel of its own in any case"
            return Rejected("normed_alone", node.name, why)
    return Accepted("normed_alone")


RULES = (rounding_tier, fp32_squares, in_range, one_weight, same_rows, normed_alone)


def first_refusal(front: InFront) -> Rejected | None:
    """What the first rule that does not hold says."""
    return next((decided for rule in RULES if isinstance(decided := rule(front), Rejected)), None)
