"""The elements of a chain as a kernel walks over them: as few dimensions as its tensors allow, in the order in which
they lie in memory."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from fusioncc.chain import Chain

INT32_ELEMENTS = 2**31 - 2**20
"""Offsets from here on need 64 bits: the last tile may begin in front of them and end beyond 2**31."""


@dataclass(frozen=True)
class Space:
    """``sizes`` of the dimensions, outermost first; for each input, then each result, its stride along each of them in
    elements (0: the same element for all). ``outer`` is the dimension of the chain's shape that is outermost, and
    ``below`` how many elements of the first dimension lie in each element of it."""

    sizes: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    outer: int
    below: int

    @property
    def rows(self) -> int:
        """Rows of tiles: the product of all dimensions but the last; 1 where there is one dimension."""
        return prod(self.sizes[:-1])

    @property
    def wide(self) -> bool:
        """Whether offsets need 64 bits."""
        reach = (sum((size - 1) * s for size, s in zip(self.sizes, each, strict=True)) for each in self.strides)
        return max(reach, default=0) >= INT32_ELEMENTS or self.rows * self.sizes[-1] >= INT32_ELEMENTS


def space_of(chain: Chain) -> Space:
    """Dimensions in the order of the first result's memory (the last one stays last where rows are reduced), those that
    no tensor tells apart as one."""
    shape = chain.shape or (1,)
    tensors = [_spread(each.shape, each.strides, shape) for each in chain.inputs]
    tensors += [_spread(chain.shape_of(result.value), result.strides, shape) for result in chain.results]
    first = tensors[len(chain.inputs)] if chain.results else (0,) * len(shape)
    dims = [dim for dim, size in enumerate(shape) if size > 1] or [len(shape) - 1]
    last = [len(shape) - 1] if chain.by_rows else []
    leading = sorted((dim for dim in dims if dim not in last), key=lambda dim: -first[dim])
    groups: list[list[int]] = []
    for dim in leading:
        if groups and all(_follows(each, groups[-1][-1], dim, shape) for each in tensors):
            groups[-1].append(dim)
        else:
            groups.append([dim])
    groups += [last] if last else []
    sizes = tuple(prod(shape[dim] for dim in group) for group in groups)
    strides = tuple(tuple(each[group[-1]] for group in groups) for each in tensors)
    outer = groups[0][0]
    return Space(sizes, strides, outer, sizes[0] // shape[outer])


def _spread(shape: Sequence[int], strides: Sequence[int], whole: Sequence[int]) -> tuple[int, ...]:
    """Strides along the dimensions of ``whole``: 0 where a tensor repeats."""
    lead = len(whole) - len(shape)
    own = [stride if size > 1 else 0 for size, stride in zip(shape, strides, strict=True)]
    return (0,) * lead + tuple(own)


def _follows(strides: Sequence[int], outer: int, inner: int, shape: Sequence[int]) -> bool:
    """Whether a step along ``outer`` is as long as all of ``inner``."""
    return strides[outer] == strides[inner] * shape[inner]
