"""Several kernels in one launch: their tiles are numbered one after another, and a program finds its tile's member.

Each member's body becomes a device function; members with one text share it. The bundle's kernel takes what its members
share under its own name (``x_ptr``, ``K``) and everything else once for each member (``w_0_ptr``, ``N_0``).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from fusioncc.codegen.kernel import TILE, Kernel, Param, Part, function, part, signature, total
from fusioncc.codegen.lines import call, indented
from fusioncc.schedule import Pool, Schedule

Names = Mapping[str, str]
"""Names of one member, and what the bundle calls them."""


def by_launch(schedule: Schedule) -> list[list[Pool]]:
    """The pools of each launch, in order."""
    return [list(pools) for _, pools in groupby(schedule.pools, key=lambda pool: pool.launch)]


def bundle(members: Sequence[Kernel]) -> Kernel:
    """One kernel that runs the tiles of all members; a single member stays as it is.

    Members agree in warps, stages and workers.
    """
    if len(members) == 1:
        return members[0]
    names = _names(members)
    ends = [_renamed(member.tiles, mine) for member, mine in zip(members, names, strict=True)]
    declared = total([_renamed(member.prologue, mine) for member, mine in zip(members, names, strict=True)])
    counted = _counted(ends[:-1])
    functions = _functions(members)
    sources = ["\n".join(_source(member, name)) + "\n" for member, name in zip(members, functions, strict=True)]
    return replace(
        members[0],
        stem="bundle",
        body=_dispatch(members, names, functions),
        grid=tuple(blocks for member in members for blocks in member.grid),
        tiles=part(f"end_{len(ends) - 2} + {ends[-1].lines[0]}", params=ends[-1].params),
        helpers=tuple(dict.fromkeys([*(each for member in members for each in member.helpers), *sources])),
        prologue=Part(tuple(dict.fromkeys(declared.lines)), declared.params) + counted,
    )


def _names(members: Sequence[Kernel]) -> list[Names]:
    """What the bundle calls the parameters and locals of each member: numbered where members differ."""
    params = _told_apart([_distinct(member, local=False) for member in members])
    declared = [
        {name: _declaration(member.prologue, name, mine) for name in _distinct(member, local=True)}
        for member, mine in zip(members, params, strict=True)
    ]
    return [mine | told for mine, told in zip(params, _told_apart(declared), strict=True)]


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


def _distinct(member: Kernel, *, local: bool) -> dict[str, object]:
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


def _counted(tiles: Iterable[Part]) -> Part:
    """``end_0``, ``end_1``, ...: where the tiles of each member but the last end."""
    body = Part()
    for index, count in enumerate(tiles):
        before = f"end_{index - 1} + " if index else ""
        body += part(f"end_{index} = {before}{count.lines[0]}", params=count.params)
    return body


def _functions(members: Sequence[Kernel]) -> list[str]:
    """Name of the device function of each member: one for members of one text."""
    by_text: dict[tuple[str, ...], str] = {}
    return [by_text.setdefault(_source(member, ""), f"{member.stem}_tile_{member.number}") for member in members]


def _source(member: Kernel, name: str) -> tuple[str, ...]:
    return function(name, signature(member.body.params, member.stem), member.body)


def _dispatch(members: Sequence[Kernel], names: Sequence[Names], functions: Sequence[str]) -> Part:
    """Which member the tile belongs to."""
    lines = ["# No else: Triton gives the operand tiles of an if and of its else shared memory of their own."]
    params: list[Param] = [TILE]
    for index, (member, mine, name) in enumerate(zip(members, names, functions, strict=True)):
        taken = signature(member.body.params, member.stem)
        number = f"tile - end_{index - 1}" if index else "tile"
        bounds = [f"end_{index - 1} <= tile"] * (index > 0) + [f"tile < end_{index}"] * (index < len(members) - 1)
        lines.append(f"if {' and '.join(bounds)}:")
        lines += indented(call(name, [number if param == TILE else mine[param.name] for param in taken], depth=3))
        params += [_param(param, mine) for param in taken]
    return part(*lines, params=tuple(params))
