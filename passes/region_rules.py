"""Rules a whole region must pass before a kernel may replace it. Each answers for one reason.

A rule takes :class:`RegionFacts`. ``check_region`` returns every refusal, not only the first: a user who mends one
wants to know about the next.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import fx

from fusioncc.decision import Accepted, Decision, Rejected
from fusioncc.graph import (
    dtype_of,
    gaps_may_close,
    is_collective,
    is_mutation,
    is_static,
    matrix_strides,
    product,
    rows_may_be_padded,
    same_size,
    size_hint,
    storage_of,
    tensor,
    users_outside,
)
from fusioncc.group import EMITTED_DTYPES
from fusioncc.passes.find_regions import Region


@dataclass(frozen=True)
class RegionFacts:
    """A region, the node kernels read X from, the position of each node in the graph, and which are
    :func:`barriers_of`."""

    region: Region
    lhs: fx.Node
    order: dict[fx.Node, int]
    barriers: tuple[fx.Node, ...]

    def operands(self) -> Iterator[fx.Node]:
        """Tensors the kernel would read besides X: weights, biases, tensor scales."""
        region = self.region
        for gemm in (region.main, *(g for joined in region.branches for g in (joined.branch.down, joined.branch.up))):
            yield from (node for node in (gemm.weight, gemm.bias) if node is not None)
        for joined in region.branches:
            yield from (*joined.branch.on_lhs.tensors, *joined.branch.on_down.tensors, *joined.on_up.tensors)


def dtypes(facts: RegionFacts) -> Decision:
    """Every tensor is bf16, fp16 or fp32, and no weight is narrower than what it is joined to."""
    for node in (facts.lhs, facts.region.output, *facts.operands()):
        if dtype_of(node) not in EMITTED_DTYPES:
            return Rejected(
                "dtypes", node.name, f"{dtype_of(node)} tensors have no emitted form ({', '.join(EMITTED_DTYPES)} have)"
            )
    lhs, main = dtype_of(facts.lhs), dtype_of(facts.region.main.weight)
    for node in facts.operands():
        if dtype_of(node) not in (lhs, main, "fp32"):
            return Rejected(
                "dtypes", node.name, f"{dtype_of(node)} beside {lhs} is mixed in a way no kernel is emitted for"
            )
    return Accepted("dtypes")


def one_device(facts: RegionFacts) -> Decision:
    """All tensors live on one device."""
    device = tensor(facts.lhs).device  # type: ignore[union-attr]
    for node in facts.operands():
        if tensor(node).device != device:  # type: ignore[union-attr]
            return Rejected("one_device", node.name, f"{node.name} is on {tensor(node).device}, X on {device}")  # type: ignore[union-attr]
    return Accepted("one_device")


def sizes(facts: RegionFacts) -> Decision:
    """N, K, every rank and the batch are static and not zero; M has a value to plan with."""
    main = facts.region.main
    named = [("N", main.n, main), ("K", main.k, main), ("the batch", main.batch, main)]
    named += [("rank", joined.branch.down.n, joined.branch.down) for joined in facts.region.branches]
    for name, size, gemm in named:
        if not is_static(size):
            return Rejected("sizes", gemm.node.name, f"{name} is symbolic ({size}); only the number of rows may be")
        if size == 0:
            return Rejected("sizes", gemm.node.name, f"{name} is 0")
    if size_hint(main.m) in (None, 0):
        why = "M is 0" if is_static(main.m) else f"M ({main.m}) depends on data"
        return Rejected("sizes", main.node.name, why)
    return Accepted("sizes")


def layout(facts: RegionFacts) -> Decision:
    """Strides of X and of the weights are static, and the output is stored row by row as the kernel stores it."""
    lhs = tensor(facts.lhs)
    if lhs is None or matrix_strides(lhs) is None:
        return Rejected("layout", facts.lhs.name, "X is not a matrix with static strides, nor contiguous")
    for node in (facts.lhs, *facts.operands()):
        value = tensor(node)
        if value is not None and value.dim() >= 2 and storage_of(node) is None:
            return Rejected("layout", node.name, "strides are symbolic")
        if value is not None and value.dim() >= 2 and rows_may_be_padded(node):
            return Rejected(
                "layout",
                node.name,
                f"Inductor may pad the rows of this intermediate ({value.shape[-1]} {dtype_of(node)} elements)",
                "a multiple of 128 bytes is not padded",
            )
    for node in (facts.lhs, *facts.operands()):
        value = tensor(node)
        storage = storage_of(node) if value is not None and value.dim() >= 2 and node is not facts.lhs else None
        read = node if storage is None else storage.node
        if gaps_may_close(read):
            return Rejected(
                "layout",
                read.name,
                f"Inductor may store this intermediate with other strides than {tuple(tensor(read).stride())}",  # type: ignore[union-attr]
                "a contiguous copy has strides that stay",
            )
    if not tensor(facts.region.output).is_contiguous():  # type: ignore[union-attr]
        return Rejected(
            "layout",
            facts.region.output.name,
            "the sum is not stored row by row, and later ops may rely on its strides",
        )
    return Accepted("layout")


def plain_main(facts: RegionFacts) -> Decision:
    """The main product is ``X @ W`` or ``X @ W + bias[N]``, not scaled."""
    main = facts.region.main
    if main.addend is not None:
        return Rejected(
            "plain_main",
            main.node.name,
            f"adds {main.addend.name}, which is no bias of N elements",
            "add it behind the product",
        )
    if main.alpha != 1 or main.beta not in (0, 1):
        return Rejected("plain_main", main.node.name, f"alpha={main.alpha:g}, beta={main.beta:g} on the main product")
    return Accepted("plain_main")


def one_element_per_column(facts: RegionFacts) -> Decision:
    """Every bias has N elements in its last dimension and is not spread over rows."""
    for gemm in (facts.region.main, *(g for j in facts.region.branches for g in (j.branch.down, j.branch.up))):
        bias = tensor(gemm.bias)
        if bias is None or gemm.bias is None:
            continue
        if not (same_size(product(bias.shape), gemm.n) and is_static(bias.stride(-1))):
            return Rejected(
                "bias",
                gemm.bias.name,
                f"a bias of shape {tuple(bias.shape)} broadcasts in a way no kernel is emitted for",
            )
    return Accepted("bias")


def no_barrier(facts: RegionFacts) -> Decision:
    """No mutation stands before the sum, and no collective between the first product and the sum.

    The kernel runs as soon as its operands exist, and copies were looked through to find X: both are sound only while
    no tensor changes. Functional graphs write to their inputs at the end.
    """
    positions = [facts.order[node] for node in facts.region.inner]
    first, last = min(positions), max(positions)
    for node in facts.barriers:
        position = facts.order[node]
        if position < last and is_mutation(node):
            return Rejected(
                "no_barrier",
                node.name,
                f"a mutation ({node.name}) stands before the sum, which may read what it changes",
            )
        if first < position < last and is_collective(node):
            return Rejected(
                "no_barrier", node.name, f"a collective ({node.name}) stands between the products and their sum"
            )
    return Accepted("no_barrier")


def barriers_of(graph: fx.Graph) -> tuple[fx.Node, ...]:
    """The mutations and collectives of a graph, in order."""
    return tuple(node for node in graph.nodes if is_mutation(node) or is_collective(node))


def independent(facts: RegionFacts) -> Decision:
    """No operand depends on a value made inside the region, so the contracted graph has no cycle."""
    inner, first = facts.region.inner, min(facts.order[node] for node in facts.region.inner)
    frontier, seen = list(facts.operands()), set(facts.operands())
    while frontier:
        node = frontier.pop()
        if node in inner:
            return Rejected(
                "independent", node.name, f"an operand of the fused kernel is computed from {node.name}, which it makes"
            )
        later = [arg for arg in node.all_input_nodes if arg not in seen and facts.order[arg] >= first]
        seen.update(later)
        frontier += later
    return Accepted("independent")


def saved_products(facts: RegionFacts) -> Decision:
    """A down product that is read elsewhere can be written out: no bias is folded in and it is not padded."""
    for joined in facts.region.branches:
        down = joined.branch.down
        if joined.saved and (
            down.result is not down.node or down.bias is not None or dtype_of(down.result) not in EMITTED_DTYPES
        ):
            return Rejected(
                "saved_products",
                down.node.name,
                "the down product is read elsewhere in a form the kernel does not make",
            )
        if joined.saved and (joined.branch.on_lhs.tensors or joined.branch.on_lhs.value != 1 or down.alpha != 1):
            reader = next(users_outside(down.result, set(facts.region.inner)), down.result)
            return Rejected(
                "saved_products",
                down.node.name,
                f"{reader.name} reads the down product of a scaled X, the kernel makes the unscaled one",
            )
    return Accepted("saved_products")


REGION_RULES: tuple[Callable[[RegionFacts], Decision], ...] = (
    dtypes,
    one_device,
    sizes,
    plain_main,
    one_element_per_column,
    layout,
    no_barrier,
    independent,
    saved_products,
)


def check_region(facts: RegionFacts) -> tuple[Rejected, ...]:
    """Every refusal; empty when a kernel may replace the region."""
    early = [rule(facts) for rule in REGION_RULES[:3]]
    if not all(early):
        return tuple(decision for decision in early if isinstance(decision, Rejected))
    return tuple(decision for rule in REGION_RULES[3:] if isinstance(decision := rule(facts), Rejected))
