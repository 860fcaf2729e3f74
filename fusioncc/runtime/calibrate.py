"""``fusioncc calibrate``: whether there is a card to measure, what its driver says of it, and its profile."""

import datetime
import subprocess
from typing import Any

import torch

from fusioncc.calibration import Card, Timings, profile
from fusioncc.config import interpreter_requested
from fusioncc.decision import Rejected
from fusioncc.device import Device
from fusioncc.errors import CalibrationError
from fusioncc.runtime.executor import runnable


def calibrate(name: str) -> Device:
    """The profile, under ``name``, of the card that torch uses; measures it, in well under 90 seconds.

    Raises:
        CalibrationError: no card that runs emitted kernels, or a figure came out as no card can have it.
    """
    if not torch.cuda.is_available():
        raise CalibrationError("calibrate measures the CUDA card of this machine, and torch finds none")
    refused = runnable(torch.device("cuda", torch.cuda.current_device()))
    if isinstance(refused, Rejected):
        raise CalibrationError(f"calibrate cannot measure this card: {refused.reason}")
    if interpreter_requested():
        raise CalibrationError("calibrate times compiled kernels; unset TRITON_INTERPRET")
    try:
        return profile(card(), timed(), name)
    except torch.OutOfMemoryError as error:
        raise CalibrationError("calibrate needs 3 GiB of the card's memory, and so much is not free") from error


def card() -> Card:
    """The current card as its driver describes it."""
    found: Any = torch.cuda.get_device_properties()
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        versions = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()
    except (OSError, subprocess.CalledProcessError):
        versions = []
    return Card(
        name=found.name,
        driver=versions[0] if versions else "unknown",
        date=datetime.date.today().isoformat(),
        capability=10 * found.major + found.minor,
        multiprocessors=found.multi_processor_count,
        l2_bytes=found.L2_cache_size,
        shared_bytes=found.shared_memory_per_block_optin,
        shared_bytes_sm=found.shared_memory_per_multiprocessor,
        registers_sm=found.regs_per_multiprocessor,
    )


def timed() -> Timings:
    """Measure.

    Raises:
        CalibrationError: triton is not installed.
    """
    try:
        from fusioncc.runtime.timings import measure
    except ModuleNotFoundError as error:
        raise CalibrationError(f"calibrate compiles kernels, and {error.name} is not installed") from error
    return measure()
