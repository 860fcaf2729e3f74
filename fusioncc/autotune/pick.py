"""The kind to run, of those that were ranked: the fastest predicted, but for what some must be ahead of others.

Measured figures are ratios of times on one H200 (``benchmarks/results/cost_model.json`` and ``lora_linear.json``).
"""

from fusioncc.group import Group
from fusioncc.schedule import Candidate

ON_REQUEST = ("streams", "k_concat", "merged")
"""Kinds that run only when they are asked for: ``merged`` copies weights, ``k_concat`` moves them, and ``streams`` is
opaque to Inductor."""
MIN_GAIN = 0.015
"""An emitted schedule must be predicted this much faster than ``library``: less is within the model's error."""
PLAIN_GAIN = 0.1
"""The same for products without a branch where the MMA binds: there the vendor's kernels are ahead of the model's
picture of them (measured at 512 rows: 7 to 12 %)."""
ENDED_ROWS = 4096
"""Rows from which an emitted schedule without a branch is taken with the usual gain where its tiles end with a chain:
there power binds both, and the model is within 2 % (8192 rows; at 256 and 1024 it is 2 to 13 % off for the vendor)."""
WAITING_GAIN, POINTER_WAITING_GAIN = 0.05, 0.15
"""``two_pool``, whose programs wait for one another, must be predicted this much faster than any other kind. Where it
is, it took 0.82 to 1.09 times as long as ``split``, 0.94 in the mean of 7 groups. All of these have main tiles through
TMA; those through pointers are for cards without, and none of those was measured."""
ONE_LAUNCH, ONE_LAUNCH_ROWS = 0.04, 64
"""Up to so many rows ``split`` must be predicted this much faster than ``inline``, which has a launch less and no
partial sums in memory. Where it is not, ``inline`` took 0.95 to 0.98 times as long at 64 rows (4 groups); at 128 rows,
predicted 5 % slower, 1.09 times."""


def pick(candidates: tuple[Candidate, ...], group: Group) -> Candidate:
    """The candidate to run, of one a kind, fastest first.

    Raises:
        KeyError: ``library`` is not one of those that are legal.
    """
    legal = {each.kind: each for each in candidates if each.legal and each.kind not in ON_REQUEST}
    library, inline, waiting = legal["library"], legal.get("inline"), legal.get("two_pool")
    fastest = next(each for each in legal.values() if each is not waiting)
    if waiting is not None and all(beats(waiting, other, group) for other in (fastest, library)):
        return waiting
    if not beats(fastest, library, group):
        return library
    if inline is not None and beats(inline, library, group) and not beats(fastest, inline, group):
        return inline
    return fastest


def beats(candidate: Candidate, other: Candidate, group: Group) -> bool:
    """Whether a candidate is predicted as much faster than another as it must be."""
    if candidate is other:
        return True
    if candidate.predicted_us is None or other.predicted_us is None:
        return False
    return candidate.predicted_us <= other.predicted_us * (1 - margin(candidate, other.kind, group))


def margin(candidate: Candidate, other: str, group: Group) -> float:
    """How much faster than one of another kind a candidate must be predicted, as a share of the other's time."""
    if candidate.kind == "two_pool":
        pools = candidate.schedule.pools if candidate.schedule is not None else ()
        return WAITING_GAIN if any(pool.tile.tma for pool in pools) else POINTER_WAITING_GAIN
    if other == "library":
        binds = candidate.estimate.binds if candidate.estimate is not None else ""
        plain = binds == "mma" and not group.branches and not (group.epilogues and group.m >= ENDED_ROWS)
        return PLAIN_GAIN if plain else MIN_GAIN
    few = group.m <= ONE_LAUNCH_ROWS
    return ONE_LAUNCH if (candidate.kind, other) == ("split", "inline") and few else 0.0
