"""Lines of emitted Python: calls broken the way the formatter breaks them."""

import textwrap
from collections.abc import Iterable, Sequence

WIDTH = 120
"""Line length of emitted source, the project's own."""


def indented(lines: Iterable[str], depth: int = 1) -> tuple[str, ...]:
    """The lines moved right by ``depth`` levels; empty lines stay empty."""
    return tuple(" " * (4 * depth) + line if line else "" for line in lines)


def call(head: str, arguments: Sequence[str], tail: str = "", *, depth: int = 1) -> tuple[str, ...]:
    """``head(arguments)tail`` on one line where it fits at ``depth`` levels, else one argument a line."""
    flat = f"{head}({', '.join(arguments)}){tail}"
    if len(flat) + 4 * depth <= WIDTH:
        return (flat,)
    return (f"{head}(", *indented(f"{argument}," for argument in arguments), f"){tail}")


def returned(values: Sequence[str]) -> str:
    """Return the values as a tuple."""
    return f"return ({values[0]},)" if len(values) == 1 else f"return {', '.join(values)}"


def paragraph(text: str, *, first: str = "", rest: str = "") -> tuple[str, ...]:
    """Prose wrapped to the line length, ``first`` before its first line and ``rest`` before the others."""
    return tuple(
        textwrap.wrap(
            text,
            WIDTH,
            initial_indent=first,
            subsequent_indent=rest,
            break_long_words=False,
            break_on_hyphens=False,
        )
    )
