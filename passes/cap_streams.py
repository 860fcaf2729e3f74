"""Cap streams: hold each side of a ``streams`` schedule to the multiprocessors that the user asked for.

The emitted kernel beside the vendor's products gets a persistent grid of that many programs, which cannot cover more
multiprocessors; what joins them runs alone and is not capped. The vendor's products get streams of a green context,
torch's name for a partition of the driver's. A cap that cannot be had is refused, and the side runs without it.
"""

from dataclasses import dataclass, replace

from fusioncc.config import Options
from fusioncc.decision import Decision, Rejected, accepted_with
from fusioncc.device import Device
from fusioncc.runtime.green_contexts import refusal
from fusioncc.schedule import Schedule

RULE = "multiprocessors"


@dataclass(frozen=True)
class Caps:
    """Most multiprocessors of the emitted kernel and of the vendor's products; None: no cap."""

    emitted: int | None = None
    vendor: int | None = None

    @classmethod
    def asked(cls, options: Options) -> "Caps":
        """Those of the options."""
        return cls(options.emitted_multiprocessors, options.vendor_multiprocessors)

    @classmethod
    def of(cls, schedule: Schedule) -> "Caps":
        """Those of a schedule."""
        downs = [pool.workers for pool in schedule.pools if pool.role == "down"]
        return cls(downs[0] if downs else None, schedule.vendor_multiprocessors)


def with_caps(schedule: Schedule, caps: Caps) -> Schedule:
    """A ``streams`` schedule with these caps and no others; any other schedule as it is."""
    if schedule.kind != "streams":
        return schedule
    pools = tuple(replace(pool, workers=caps.emitted) if pool.role == "down" else pool for pool in schedule.pools)
    return replace(schedule, pools=pools, vendor_multiprocessors=caps.vendor)


def cap_streams(
    schedule: Schedule, caps: Caps, name: str, device: Device, runnable: Decision
) -> tuple[Schedule, list[Rejected]]:
    """The schedule of group ``name`` with those of ``caps`` that it can have, and why it has not the others."""
    if schedule.kind != "streams":
        return schedule, []
    emitted, vendor = _emitted(schedule, caps, device), _vendor(caps, device, runnable)
    kept = Caps(None if emitted else caps.emitted, None if vendor else caps.vendor)
    return with_caps(schedule, kept), [Rejected(RULE, name, reason) for reason in (emitted, vendor) if reason]


def _emitted(schedule: Schedule, caps: Caps, device: Device) -> str:
    if caps.emitted is not None and not schedule.pools:
        return "no emitted kernel runs beside the vendor's products: the members have no branches"
    return _beyond(caps.emitted, device)


def _vendor(caps: Caps, device: Device, runnable: Decision) -> str:
    beyond = _beyond(caps.vendor, device)
    if beyond or caps.vendor is None or not accepted_with(runnable, "cuda"):
        return beyond
    return refusal(caps.vendor)


def _beyond(cap: int | None, device: Device) -> str:
    if cap is None or cap <= device.multiprocessors:
        return ""
    return f"a cap of {cap} multiprocessors: {device.name} has {device.multiprocessors}"
