"""Rules on what nearly is a low-rank branch: why a product ``up(f(down(X)))`` beside ``main(X)`` is not joined to it.

A rule takes :class:`NearMiss` and returns a decision. Each looks at one stretch of the way from X to the sum; the first
refusal is what the user reads.
"""

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import fx

from fusioncc.decision import Accepted, Decision, Rejected
from fusioncc.graph import (
    CASTS,
    COPIES,
    SUMS,
    aten,
    dtype_of,
    is_random,
    is_rounding,
    keeps_order,
    product,
    same_size,
    tensor,
)
from fusioncc.passes.canonicalize import Gemm
from fusioncc.passes.find_branches import scale_of


@dataclass(frozen=True)
class NearMiss:
    """A down product, the up product made from it, a main product of the same X, and the sum of main and up.

    ``inner`` are the nodes from down to up, ``behind_up`` those from up to the sum, ``behind_main`` those from main to
    the sum, in the order of computation; ``joined`` are nodes that the main member's region covers already.
    """

    main: Gemm
    down: Gemm
    up: Gemm
    inner: tuple[fx.Node, ...]
    behind_up: tuple[fx.Node, ...]
    behind_main: tuple[fx.Node, ...]
    total: fx.Node
    joined: frozenset[fx.Node] = frozenset()


def linear_branch(miss: NearMiss) -> Decision:
    """Between the down and the up product stand only scales, views and casts."""
    where = f"between the down product {miss.down.node.name} and the up product {miss.up.node.name}"
    for node, source in _steps(miss.down.result, miss.inner):
        if not _is_scale(node):
            words, hint = _describe(node, source)
            return Rejected("linear_branch", node.name, f"{words} {where}; a kernel has only scales there", hint)
    return Accepted("linear_branch")


def plain_sum(miss: NearMiss) -> Decision:
    """The sum is ``main + scale * up``: scales may follow the up product only, views and casts both."""
    for node, source in _steps(miss.up.result, miss.behind_up):
        if not _is_scale(node):
            words, hint = _describe(node, source)
            where = f"between the up product {miss.up.node.name} and its sum with {miss.main.node.name}"
            return Rejected("plain_sum", node.name, f"{words} {where}", hint)
    for node, source in _steps(miss.main.result, miss.behind_main):
        if node in miss.joined or _keeps_values(node):
            continue
        words, hint = _describe(node, source)
        if (scaled := scale_of(node)) is not None:
            words, hint = f"{node.name} scales {scaled[0].name}", "scale the branch or the weight instead"
        where = f"between the main product {miss.main.node.name} and its sum with {miss.up.node.name}"
        return Rejected("plain_sum", node.name, f"{words} {where}", hint)
    return _weights_of_sum(miss)


def _weights_of_sum(miss: NearMiss) -> Decision:
    """The sum takes the main product as it is: once, not negated, not multiplied."""
    total, up = miss.total, miss.up
    main = (miss.main.result, *miss.behind_main)[-1]
    alpha = total.kwargs.get("alpha", 1)
    words = hint = ""
    if total is up.node and up.beta != 1:
        words, hint = f"multiplies the main product by beta={up.beta:g}", "scale the weight instead"
    elif total is miss.main.node:
        words, hint = "takes the branch as its addend", "write the sum as main + branch"
    elif total.target is aten.sub.Tensor and total.args[1] is main:
        words, hint = (
            "subtracts the main product",
            "main - branch is joined, branch - main is not",
        )
    elif total.target is aten.add.Tensor and total.args[1] is main and alpha != 1:
        words, hint = f"multiplies the main product by alpha={alpha}", "scale the weight instead"
    return Rejected("plain_sum", total.name, f"{total.name} {words}", hint) if words else Accepted("plain_sum")


def unshared_main(miss: NearMiss) -> Decision:
    """Nothing but the sum reads the main product: a kernel that makes the sum does not make the product."""
    for node in (miss.main.result, *miss.behind_main):
        others = [user for user in node.users if user is not miss.total and user not in miss.behind_main]
        if others:
            why = f"{node.name} is also read by {others[0].name}, so the main product has to exist without its branch"
            return Rejected("unshared_main", node.name, why)
    return Accepted("unshared_main")


NEAR_MISS_RULES: tuple[Callable[[NearMiss], Decision], ...] = (linear_branch, plain_sum, unshared_main)


def check_near_miss(miss: NearMiss) -> Rejected | None:
    """The first refusal; None when no rule here knows why the branch was not joined."""
    decisions = (rule(miss) for rule in NEAR_MISS_RULES)
    return next((decision for decision in decisions if isinstance(decision, Rejected)), None)


def _steps(start: fx.Node, path: tuple[fx.Node, ...]) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Each node of a path with the one it is computed from."""
    return zip(path, (start, *path), strict=False)


def _keeps_values(node: fx.Node) -> bool:
    return keeps_order(node) or node.target in COPIES or is_rounding(node)


def _is_scale(node: fx.Node) -> bool:
    return _keeps_values(node) or scale_of(node) is not None


def _describe(node: fx.Node, source: fx.Node) -> tuple[str, str]:
    """What a node does to ``source``, in words that go before "between", and a hint where there is one."""
    other = next((arg for arg in node.args[:2] if arg is not source), None)
    name = other.name if isinstance(other, fx.Node) else str(other)
    if is_random(node) or (node.target is operator.getitem and is_random(source)):
        return f"a random op ({node.name}) stands", "switch the model to eval() or set the adapter's dropout to 0"
    if node.target in CASTS:
        return f"a cast to {dtype_of(node)} ({node.name}) stands", ""
    if node.target in SUMS:
        hint = "add it behind the sum of the main product and the branch"
        if node.target is aten.sub.Tensor and node.args[0] is not source:
            return f"{node.name} subtracts {source.name} from {name}", hint
        return f"{node.name} {'adds' if node.target is aten.add.Tensor else 'subtracts'} {name}", hint
    if node.target in (aten.mul.Tensor, aten.div.Tensor) and isinstance(other, fx.Node) and tensor(other) is not None:
        shape = tuple(tensor(other).shape)  # type: ignore[union-attr]
        verb = "multiplies" if node.target is aten.mul.Tensor else "divides"
        one = same_size(product(shape), 1) and verb == "divides" and node.args[0] is source
        hint = "multiply by its reciprocal" if one else "numbers and one-element tensors that multiply are scales"
        return f"{node.name} {verb} by {name} of shape {shape}", hint
    return f"{node.name} stands", ""
