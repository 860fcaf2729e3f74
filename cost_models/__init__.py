"""Cost models: pure functions of (group, schedule, device). No torch, no triton, no GPU.

One model a file: ``launches`` (what is launched), ``traffic`` (bytes), ``resources`` (shared memory, registers,
occupancy), ``tiles`` (time of an emitted grid), ``pools`` (a simulation of persistent workers), ``two_pool`` (their
tiles, and what it says of them), ``overlap`` (launches at the same time), ``vendor`` (time of library kernels),
``memory`` (peak live bytes), ``roofline``, and ``estimate``, which adds them up. Beside them ``shapes`` (histograms of
shapes, buckets, what preparing kernels costs), ``break_even`` (which of that is cheapest from where), and with sympy,
imported by nothing that plans, ``closed_form`` (bytes as formulas) and ``crossovers``. Constants that measurement
calibrates are all in ``constants``.
"""

if not __name__.startswith("fusioncc."):
    raise ImportError("import this package as fusioncc.cost_models: under a bare name every class would exist twice")

from fusioncc.cost_models.estimate import estimate
from fusioncc.cost_models.launches import launches
from fusioncc.cost_models.memory import footprint, peak_bytes

__all__ = ["estimate", "footprint", "launches", "peak_bytes"]
