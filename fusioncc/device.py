"""Device profiles: a device is data.

A :class:`Device` holds the figures that the cost models need. ``get_device`` finds a profile that ships by name or
reads one from a file, and ``profile_for`` finds the profile of the card that a driver describes.
"""

import re
from dataclasses import replace
from pathlib import Path

from fusioncc.datasheets import PROFILES
from fusioncc.errors import OptionError
from fusioncc.figures import FIGURES, Device
from fusioncc.profile_file import read_profile

__all__ = ["DEPENDENT_CAPABILITY", "FIGURES", "PROFILES", "Device", "get_device", "profile_for"]

DEPENDENT_CAPABILITY = 90
"""First compute capability with programmatic dependent launch."""

MARKETING: tuple[tuple[str, str], ...] = (
    ("a100 40gb", "a100-40"),
    ("a100 80gb", "a100-80"),
    ("h100 pcie", "h100-pcie"),
    ("h100", "h100"),
    ("h200", "h200"),
    ("l40s", "l40s"),
    ("rtx 4090", "rtx4090"),
    ("rtx 5090", "rtx5090"),
    ("rtx pro 6000", "rtxpro6000"),
    ("b200", "b200"),
)
"""Words of a driver's device name (all must be there, whole) and the profile they mean; the first match counts."""

FAMILIES = ((120, "rtx5090"), (100, "b200"), (90, "h100"), (86, "rtx4090"), (0, "a100-40"))
"""Lowest capability, and the profile that an unknown card of it is scaled from."""

SCALED = ("dram_gbps", "l2_gbps", "bf16_tflops", "tf32_tflops", "fp32_tflops")
"""Figures that go with the number of multiprocessors."""


def get_device(wanted: "str | Path | Device") -> Device:
    """A profile: one that ships, by name without case; the one in a file, by a path that ends in ``.json``; or a
    :class:`Device` as it is.

    Raises:
        OptionError: no such profile (the message lists the valid names), or a file that is none.
    """
    if isinstance(wanted, Device):
        return wanted
    if not isinstance(wanted, str | Path):
        raise OptionError(f"device={wanted!r} is not the name of a device profile")
    name = str(wanted)
    if name.lower().endswith(".json"):
        return read_profile(Path(name))
    if name.lower() in PROFILES:
        return PROFILES[name.lower()]
    valid = ", ".join(sorted(PROFILES))
    raise OptionError(f"unknown device {name!r}; valid devices: {valid}, or a file of your own (my.json)")


def profile_for(name: str, capability: int, multiprocessors: int, shared_bytes: int, l2_bytes: int) -> Device:
    """The profile of a card as its driver describes it (``NVIDIA H100 80GB HBM3``; capability times ten).

    A card that has a profile gets it unchanged, so that a plan made elsewhere for that name is the plan made here. A
    part of one (fewer multiprocessors) or an unknown card gets the nearest profile, its rates scaled by
    multiprocessors, with the driver's own sizes.
    """
    words = set(re.findall(r"[a-z0-9]+", name.lower()))
    known = next((profile for needed, profile in MARKETING if words >= set(needed.split())), None)
    if known is not None and PROFILES[known].capability == capability:
        base = PROFILES[known]
        if base.multiprocessors == multiprocessors:
            return base
    else:
        base = PROFILES[next(profile for least, profile in FAMILIES if capability >= least)]
    return _scaled(base, name, capability, multiprocessors, shared_bytes, l2_bytes)


def _scaled(base: Device, name: str, capability: int, multiprocessors: int, shared_bytes: int, l2_bytes: int) -> Device:
    factor = multiprocessors / base.multiprocessors
    scaled = {figure: round(getattr(base, figure) * factor, 1) for figure in SCALED}
    how = f"scaled from {base.name} by {multiprocessors}/{base.multiprocessors} multiprocessors"
    driver = ("capability", "multiprocessors", "l2_bytes", "shared_bytes")
    sources = {
        **{
            figure: f"as for {base.name}: {source}"
            for figure, source in base.sources.items()
            if figure != "tile_tflops"
        },
        **dict.fromkeys(SCALED, how),
        **dict.fromkeys(driver, "as the driver reports it"),
        "shared_bytes_sm": "assumed: 1 KiB more than the driver reports for one program",
    }
    return replace(
        base,
        tile_tflops=(),  # measured on all of that card
        name="-".join(re.findall(r"[a-z0-9]+", name.lower())),
        capability=capability,
        multiprocessors=multiprocessors,
        l2_bytes=l2_bytes,
        shared_bytes=shared_bytes,
        shared_bytes_sm=shared_bytes + 1024,
        sources=sources,
        **scaled,
    )
