"""Several kernels in one launch: their tiles are numbered one after another, and a program finds its tile's member.

Each member's body becomes a device function; members with one text share it. The bundle's kernel takes what its members
share under its own name (``x_ptr``, ``K``) and everything else once for each member (``w_0_ptr``, ``N_0``).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from fusioncc.codegen.kernel import TILE, Kernel, Param, Part, function, part, signature, total
from fusioncc.codegen.launch import Arg
from fusioncc.codegen.lines import call

Names = Mapping[str, str]
"""Names of one member, and what the bundle calls them."""


def bundle(members: Sequence[Kernel]) -> Kernel:
    """One kernel that runs the tiles of all members; a single member stays as it is.

    Members agree in warps, stages and workers.
    """
    if len(members) == 1:
        return members[0]
    together = Together(tuple(members))
    return replace(
        members[0],
        stem="bundle" if len({member.stem for member in members}) > 1 else f"{members[0].stem}s",
        bundled=together.shapes,
        body=part(params=(TILE,)) + together.dispatch(len(members)),
        grid=tuple(blocks for member in members for blocks in member.grid),
        tiles=together.last_end(len(members)),
        helpers=together.helpers,
        prologue=together.declared() + together.ends(len(members)),
        waits=all(member.waits for member in members),
    )


@dataclass(frozen=True)
class Together:
    """Members of one kernel as its device functions, with the names that the kernel has for their parameters."""

    members: tuple[Kernel, ...]

    @cached_property
    def names(self) -> list[Names]:
        return _names(self.members)

    @cached_property
    def functions(self) -> list[str]:
        """Name of the device function of each member: one for members of one text."""
        by_text: dict[tuple[str, ...], str] = {}
        return [by_text.setdefault(_source(each, ""), f"{each.stem}_tile_{each.number}") for each in self.members]

    @property
    def helpers(self) -> tuple[str, ...]:
        """Source of the device functions, and of those that they call."""
        called = [helper for member in self.members for helper in member.helpers]
        named = zip(self.members, self.functions, strict=True)
        return tuple(dict.fromkeys([*called, *("\n".join(_source(each, name)) + "\n" for each, name in named)]))

    @property
    def shapes(self) -> tuple[str, ...]:
        """Tile shapes, each once."""
        return tuple(dict.fromkeys(member.shape for member in self.members))

    def declared(self) -> Part:
        """What a program does once for the members: their descriptors."""
        every = total([_renamed(each.prologue, mine) for each, mine in zip(self.members, self.names, strict=True)])
        return Part(tuple(dict.fromkeys(every.lines)), every.params)

    def tiles(self, index: int) -> Part:
        """The number of tiles of a member, as source."""
        return _renamed(self.members[index].tiles, self.names[index])

    def ends(self, count: int) -> Part:
        """``end_0``, ``end_1``, ...: where the tiles of each of the first ``count`` members end, but of the last."""
        body = Part()
        for index in range(count - 1):
            before, tiles = f"end_{index - 1} + " if index else "", self.tiles(index)
            body += part(f"end_{index} = {before}{tiles.lines[0]}", params=tiles.params)
        return body

    def last_end(self, count: int) -> Part:
        """The number of all tiles of the first ``count`` members, as source."""
        tiles = self.tiles(count - 1)
        return part((f"end_{count - 2} + " if count > 1 else "") + tiles.lines[0], params=tiles.params)

    def dispatch(self, count: int, end: str = "") -> Part:
        """Call the one of the first ``count`` members that the tile belongs to; none from ``end`` on, where given."""
        several = "# No else: Triton gives the operand tiles of an if and of its else shared memory of their own."
        body = part(several) if count > 1 else Part()
        for index in range(count):
            upper = f"end_{index}" if index < count - 1 else end
            bounds = [f"end_{index - 1} <= tile"] * (index > 0) + [f"tile < {upper}"] * bool(upper)
            body += part(f"if {' and '.join(bounds)}:")
            body += self.call(index, f"tile - end_{index - 1}" if index else "tile").indented()
        return body

    def call(self, index: int, tile: str) -> Part:
        """Run one tile of a member; ``tile`` is source of its number."""
        member, mine = self.members[index], self.names[index]
        taken = signature(member.body.params, member.stem)
        arguments = [tile if param == TILE else mine[param.name] for param in taken]
        lines = call(self.functions[index], arguments, depth=3)
        return part(*lines, params=tuple(_param(param, mine) for param in taken if param != TILE))


def _names(members: Sequence[Kernel]) -> list[Names]:
    """What the bundle calls the parameters and locals of each member: numbered where members differ."""
    params = _told_apart([_distinct(member, local=False) for member in members])
    declared = [
        {name: _declaration(member.prologue, name, mine) for name in _distinct(member, local=True)}
        for member, mine in zip(members, params, strict=True)
    ]
    return [mine | told for mine, told in zip(_one_name_a_buffer(members, params), _told_apart(declared), strict=True)]


def _one_name_a_buffer(members: Sequence[Kernel], params: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """A buffer that members name differently (the down side of ``two_pool`` writes what the main side reads) has the
    first of their names: torch's functional form gives each name that is written a tensor of its own."""
    first: dict[object, str] = {}
    named: list[dict[str, str]] = []
    for member, mine in zip(members, params, strict=True):
        buffers = {name: arg.value for name, arg in _distinct(member, local=False).items() if arg.kind == "buffer"}
        named.append(mine | {name: first.setdefault(buffer, mine[name]) for name, buffer in buffers.items()})
    return named


def _told_apart(members: Sequence[Mapping[str, object]]) -> list[dict[str, str]]:
    """A name stays where all members that have it mean one thing, unless a numbered name reads the same
    (``scale_1_ptr`` is a second scale of one member, or the scale of member 1)."""
    numbered = {
        _numbered(name, index) for index, mine in enumerate(members) for name in mine if not _alike(name, members)
    }
    return [
        {name: name if _alike(name, members) and name not in numbered else _numbered(name, index) for name in mine}
        for index, mine in enumerate(members)
    ]


def _distinct(member: Kernel, *, local: bool) -> dict[str, Arg]:
    """Parameters of a member, or its locals, by name."""
    params = (*member.prologue.params, *member.tiles.params, *member.body.params)
    return {param.name: param.arg for param in params if (param.arg.kind == "local") == local}


def _alike(name: str, members: Sequence[Mapping[str, object]]) -> bool:
    """Whether all members that have the name mean one thing."""
    return len({mine[name] for mine in members if name in mine}) == 1


def _declaration(prologue: Part, name: str, names: Names) -> str:
    """The line that defines a local, as the bundle has it."""
    return next((line for line in _renamed(prologue, names).lines if line.startswith(f"{name} = ")), "")


def _numbered(name: str, index: int) -> str:
    """``w_ptr`` of member 1 is ``w_1_ptr``."""
    stem, suffix = re.fullmatch(r"(.*?)(_ptr|_desc)?", name).groups()  # type: ignore[union-attr]
    return f"{stem}_{index}{suffix or ''}"


def _renamed(body: Part, names: Names) -> Part:
    lines = (re.sub(r"\b[A-Za-z_]\w*", lambda match: names.get(match[0], match[0]), line) for line in body.lines)
    return Part(tuple(lines), tuple(_param(param, names) for param in body.params))


def _param(param: Param, names: Names) -> Param:
    return replace(param, arg=replace(param.arg, name=names[param.name]))


def _source(member: Kernel, name: str) -> tuple[str, ...]:
    return function(name, signature(member.body.params, member.stem), member.body)
