"""Letters for the sizes of a group: M, K, N, r and the bytes of an element, as sympy symbols.

:func:`lettered` puts them into the group itself, so that whatever describes launches describes them in letters too.
"""

from dataclasses import dataclass, replace
from typing import Any

import sympy

from fusioncc.chain import Op
from fusioncc.cost_models.launch import Launch, Tensor
from fusioncc.group import DTYPE_BYTES, Epilogue, Group, Member, Operand
from fusioncc.schedule import padded_rank

PADDED = sympy.Function("padded", integer=True, positive=True)
"""The rank of a tile; see :func:`~fusioncc.schedule.padded_rank`."""
padded_rank.register(sympy.Expr, lambda rank: PADDED(rank))


def letter(name: str) -> Any:
    """A size: a positive integer."""
    return sympy.Symbol(name, integer=True, positive=True)


M, K = letter("M"), letter("K")


@dataclass(frozen=True)
class Letters:
    """A group in letters, and what each stands for. Equal widths share a letter, and so do equal ranks, which are also
    among the ``sizes``; ``elements`` has the letter of each size of an element, named after its dtype."""

    group: Group
    sizes: dict[Any, int]
    ranks: tuple[Any, ...]
    elements: dict[int, Any]

    @property
    def values(self) -> dict[Any, int]:
        """Every letter with its number."""
        return self.sizes | {symbol: size for size, symbol in self.elements.items()}

    def launch(self, launch: Launch) -> Launch:
        """A launch of the lettered group with letters for the bytes of elements as well."""
        return replace(
            launch,
            reads=tuple(map(self._tensor, launch.reads)),
            writes=tuple(map(self._tensor, launch.writes)),
            x_element=self.elements[launch.x_element],
            w_element=self.elements[launch.w_element],
            ranks=tuple(replace(rank, element=self.elements[rank.element]) for rank in launch.ranks),
            bundled=tuple(map(self.launch, launch.bundled)),
        )

    def _tensor(self, tensor: Tensor) -> Tensor:
        if tensor.element == 1:
            return tensor
        return replace(tensor, bytes=tensor.bytes / sympy.Integer(tensor.element) * self.elements[tensor.element])


def _named(stem: str, values: list[int]) -> dict[int, Any]:
    distinct = sorted(set(values), reverse=True)
    return {each: letter(stem if len(distinct) == 1 else f"{stem}{i}") for i, each in enumerate(distinct, start=1)}


def lettered(group: Group) -> Letters:
    """The group with letters for its sizes."""
    widths = _named("N", [group.members[main].n for main in group.mains])
    ranks = _named("r", [group.members[down].n for down in group.downs])
    columns = {"main": widths, "up": widths, "down": ranks}
    depth = {"main": {group.k: K}, "down": {group.k: K}, "up": ranks}

    def of(member: Member) -> Member:
        n, k = columns[member.role][member.n], depth[member.role][member.k]
        bias = member.bias and _reshaped(member.bias, {member.n: n})
        weight = replace(member.weight, shape=(*member.weight.shape[:-2], k, n))
        return replace(member, m=M, n=n, k=k, weight=weight, bias=bias)

    def end(epilogue: Epilogue) -> Epilogue:
        n = group.members[epilogue.mains[0]].n

        chain, whole = epilogue.chain, (M, widths[n])

        def read(operand: Operand) -> Operand:
            sides = zip(operand.shape, chain.shape, whole, strict=False)  # what is repeated keeps its size
            return replace(operand, shape=tuple(symbol if 1 < size == full else size for size, full, symbol in sides))

        def made(op: Op) -> Op:
            return replace(op, shape=whole) if op.shape == chain.shape else op

        products = tuple(replace(each, shape=whole) for each in chain.inputs[: len(epilogue.mains)])
        inputs, ops = (*products, *map(read, epilogue.operands)), tuple(map(made, chain.ops))
        return replace(epilogue, chain=replace(chain, shape=whole, inputs=inputs, ops=ops))

    members, ends = tuple(map(of, group.members)), tuple(map(end, group.epilogues))
    norm = group.norm and replace(
        group.norm,
        normed=replace(group.norm.normed, shape=(M, K)),
        weight=group.norm.weight and replace(group.norm.weight, shape=(K,)),
    )
    named = replace(group, lhs=replace(group.lhs, shape=(M, K)), members=members, epilogues=ends, norm=norm)
    sizes = {M: group.m, K: group.k} | {symbol: size for sizes in (widths, ranks) for size, symbol in sizes.items()}
    operands = [group.lhs, *(member.weight for member in group.members)]
    operands += [group.norm.weight] if group.norm is not None and group.norm.weight is not None else []
    dtypes = [*(each.dtype for each in operands), *(member.dtype for member in group.members), "bf16", "fp32"]
    dtypes += [output.dtype for output in group.outputs]
    for epilogue in group.epilogues:
        dtypes += [each.dtype for each in epilogue.operands]
        dtypes += [epilogue.chain.dtype_of(result.value) for result in epilogue.chain.results]
    elements: dict[int, Any] = {}
    for dtype in dtypes:
        elements.setdefault(DTYPE_BYTES[dtype], letter(dtype))
    return Letters(named, sizes, tuple(ranks.values()), elements)


def _reshaped(operand: Operand, symbols: dict[int, Any]) -> Operand:
    return replace(operand, shape=tuple(symbols.get(size, size) for size in operand.shape))
