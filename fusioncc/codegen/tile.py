"""Axes, index vectors and pointer tiles: how a kernel addresses its operands.

A tile is written in the order of the mathematics (``X [M, K]``, ``W [K, N]``, ``A [K, R]``, ``B [R, N]``). In a
swapped kernel every tile is transposed: the same vectors, spread along the other dimension.
"""

from dataclasses import dataclass, replace

from fusioncc.codegen.kernel import ROWS, Param, Part, constant, part
from fusioncc.group import Group
from fusioncc.schedule import TileConfig

INT32_ELEMENTS = 2**31
"""Offsets from here on need 64 bits."""


@dataclass(frozen=True)
class Axis:
    """One dimension of a tile: its letter, its index vector, and the bound that a mask must check (empty: none)."""

    letter: str
    index: str
    bound: str = ""

    def spread(self, first: bool) -> str:
        """The index vector as the first or the second dimension of a tile."""
        return f"{self.index}[:, None]" if first else f"{self.index}[None, :]"


@dataclass(frozen=True)
class Tile:
    """A two-dimensional tile read or written through a pointer.

    ``axes`` and ``strides`` (source of the stride along each axis, ``"1"`` for none) are in the order of the
    mathematics; ``params`` are those that the address and the masks read.
    """

    name: str
    base: str
    axes: tuple[Axis, Axis]
    strides: tuple[str, str]
    params: tuple[Param, ...]
    swap: bool

    def setup(self) -> Part:
        """``name_tile``: the pointers of the tile."""
        terms = [
            axis.spread(first != self.swap) + ("" if stride == "1" else f" * {stride}")
            for axis, stride, first in zip(self.axes, self.strides, (True, False), strict=True)
        ]
        return part(f"{self.name}_tile = {' + '.join([self.base, *terms])}", params=self.params)

    def load(self) -> Part:
        """``name``: the tile's values, 0 where a bound is passed."""
        mask = self._mask()
        options = f", mask={mask}, other=0.0" if mask else ""
        return part(f"{self.name} = tl.load({self.name}_tile{options})", params=self.params)

    def advance(self, axis: Axis, step: str) -> Part:
        """Move the pointers by ``step`` elements along ``axis``."""
        stride = self.strides[self.axes.index(axis)]
        return part(f"{self.name}_tile += {step}" + ("" if stride == "1" else f" * {stride}"), params=self.params)

    def store(self, value: str) -> Part:
        """Write ``value`` where no bound is passed."""
        mask = self._mask()
        return part(f"tl.store({self.name}_tile, {value}" + (f", mask={mask})" if mask else ")"), params=self.params)

    def _mask(self) -> str:
        terms = [
            f"{axis.spread(first != self.swap)} < {axis.bound}"
            for axis, first in zip(self.axes, (True, False), strict=True)
            if axis.bound
        ]
        return " & ".join(f"({term})" for term in terms) if len(terms) > 1 else "".join(terms)


def block_constants(tile: TileConfig, *letters: str) -> tuple[Param, ...]:
    """``BLOCK_M`` and the like for these letters."""
    sizes = {"M": tile.block_m, "N": tile.block_n, "K": tile.block_k}
    return tuple(constant(f"BLOCK_{letter}", sizes[letter]) for letter in letters)


def wide_rows(group: Group, width: int) -> bool:
    """Whether offsets of rows in X or in a buffer ``width`` columns wide need 64 bits, as they may for a symbolic M."""
    return bool(group.m_symbol) or group.m * max(group.lhs.strides[0], width) >= INT32_ELEMENTS


def row_vectors(tile: TileConfig, *, one_block: bool, wide: bool) -> tuple[Part, Axis, Axis]:
    """Rows of the tile: the part, the axis to read and the axis to write (masked).

    Spare rows read what others do, each another one: were it one row for all, its lines would be asked for by every
    program at once (40 rows in tiles of 64, K = N = 3584, on an H200: 19.7 us, and 11.7 as it is).
    """
    start = "" if one_block else ("row_block.to(tl.int64) * BLOCK_M + " if wide else "row_block * BLOCK_M + ")
    cast = ".to(tl.int64)" if wide and one_block else ""
    body = part(
        f"rows = {start}tl.arange(0, BLOCK_M){cast}",
        "safe_rows = rows % M",
        params=(ROWS, *block_constants(tile, "M")),
    )
    return body, Axis("M", "safe_rows"), Axis("M", "rows", "M")


def column_vectors(
    tile: TileConfig, n: int, n_constant: Param, *, wide: bool, head: int = 1
) -> tuple[Part, Axis, Axis]:
    """Columns of the tile: the part, the axis to read and the axis to write; masked only where N is ragged. Of a wider
    ``head``, whose halves are rotated, as many from each half."""
    start = "col_block.to(tl.int64)" if wide else "col_block"
    if head > tile.block_n:
        body = part(
            "# As many columns of either half of a head, which lie half a head apart.",
            f"first_col = {start} // (HEAD // BLOCK_N) * HEAD + {start} % (HEAD // BLOCK_N) * (BLOCK_N // 2)",
            "cols = tl.arange(0, BLOCK_N)",
            "cols = first_col + cols % (BLOCK_N // 2) + cols // (BLOCK_N // 2) * (HEAD // 2)",
            params=(constant("HEAD", head), *block_constants(tile, "N")),
        )
        return body, Axis("N", "cols"), Axis("N", "cols")
    body = part(f"cols = {start} * BLOCK_N + tl.arange(0, BLOCK_N)", params=block_constants(tile, "N"))
    if n % tile.block_n == 0:
        return body, Axis("N", "cols"), Axis("N", "cols")
    body += part("safe_cols = cols % N", params=(n_constant,))
    return body, Axis("N", "safe_cols"), Axis("N", "cols", "N")


def masked(axis: Axis, bound: str) -> Axis:
    """The axis with a bound to check."""
    return replace(axis, bound=bound)
