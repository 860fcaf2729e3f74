"""Decisions: what a legality rule answers.

A rule returns :class:`Accepted` with the facts it proved, or :class:`Rejected` with its name, the guilty node and a
reason in words. An empty reason is an error, so that "why not" always has an answer.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Accepted:
    """The rule holds. ``facts`` are short statements worth printing, in a fixed order."""

    rule: str
    facts: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return True


@dataclass(frozen=True)
class Rejected:
    """The rule does not hold at ``node`` (an FX node name, or a group name) because of ``reason``."""

    rule: str
    node: str
    reason: str
    hint: str = field(default="")
    """What would make it legal or profitable, where that is known."""

    def __post_init__(self) -> None:
        if not (self.rule and self.reason):
            raise ValueError("a rejection needs a rule and a reason")

    def __bool__(self) -> bool:
        return False


Decision = Accepted | Rejected


def accepted_with(decision: Decision, fact: str) -> bool:
    """Whether the rule holds and ``fact`` is among what it proved."""
    return isinstance(decision, Accepted) and fact in decision.facts
