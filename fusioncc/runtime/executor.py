"""What can run emitted kernels here: a CUDA device, Triton's interpreter on the CPU, or nothing."""

import functools

import torch

from fusioncc.config import interpreter_requested
from fusioncc.decision import Accepted, Decision, Rejected
from fusioncc.device import PROFILES, Device, profile_for

MIN_CAPABILITY = 80
"""bf16 MMA and asynchronous copies start with Ampere."""


def runnable(device: torch.device) -> Decision:
    """Whether emitted kernels can run on tensors of this device; the refusal says what would change that."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if 10 * major + minor < MIN_CAPABILITY:
            return Rejected("runnable", str(device), f"compute capability {major}.{minor} is older than 8.0")
        if torch.version.hip is not None:
            return Rejected("runnable", str(device), "AMD cards are not supported yet")
        return Accepted("runnable", ("cuda",))
    if device.type == "cpu" and interpreter_requested():
        return Accepted("runnable", ("interpreter",))
    if device.type == "cpu":
        hint = "set TRITON_INTERPRET=1 before starting Python to run emitted kernels under Triton's interpreter"
        return Rejected("runnable", "cpu", "Triton kernels do not run on a CPU without its interpreter", hint)
    if device.type == "meta":
        hint = "give it weights on a card to run it, or ask fusioncc.plan for the plan alone"
        return Rejected("runnable", "meta", "no emitted kernels for meta tensors, which hold no numbers", hint)
    return Rejected("runnable", device.type, f"no emitted kernels for {device.type} tensors")


@functools.cache
def profile(device: torch.device, wanted: Device | None) -> Device:
    """The profile to plan with: the one asked for, else the card's own, else the H200's (CPU, meta)."""
    if wanted is not None:
        return wanted
    if device.type != "cuda":
        return PROFILES["h200"]
    properties = torch.cuda.get_device_properties(device)
    return profile_for(
        properties.name,
        10 * properties.major + properties.minor,
        properties.multi_processor_count,
        getattr(properties, "shared_memory_per_block_optin", 99 << 10),
        properties.L2_cache_size,
    )
