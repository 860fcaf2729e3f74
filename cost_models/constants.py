"""Every calibrated constant of the cost models, with its unit and where it comes from.

What belongs to a card (bandwidths, rates, the gap between two launches) is in :class:`fusioncc.device.Device`. What is
here belongs to the code that runs on it: vendor kernels and Triton kernels with pointer loads. Times quoted as
measured are of a LoRA forward with K = 4096, N = 28672 unless said otherwise, on one H200 (torch 2.11, triton 3.6,
graph replay, weights streaming from memory). "Fitted" constants were chosen to meet those times; "assumed" ones wait
for a calibration.
"""

READ_GAIN = 1.08
"""Rate of a pure read over that of a copy (a copy turns the bus around). Weight streaming at M = 1: 4.6 against 4.26
TB/s."""

L2_RESIDENT = 0.8
"""Fraction of the L2 that a tensor may fill and still be found there by the next kernel. Assumed (hashing, other
data)."""

L2_SM_SHARE = 1.4
"""What one multiprocessor can draw from the L2, as a multiple of its fair share. Assumed: 64 bytes a clock of its
own."""

LOAD_LATENCY_US = 0.18
"""Time of a load that misses the L2 when the memory is busy, us. Assumed."""

STEP_US = 0.005
"""Barriers and address arithmetic of one K step that the MMA does not hide, us. Assumed, about 25 clocks."""

OVERLAP_LEAK = 0.03
"""Fraction of the terms that do not bind which still shows. Assumed; ranks tiles that are bound alike."""

GEMM_RAMP_US = 2.5
"""Filling the pipeline and draining the last stores of a GEMM kernel, us. Fitted: GEMM alone, N = 4096, 11.9 us for
33.5 MB."""

EMITTED_RAMP_US = 1.5
"""The same for an emitted main tile, us. Fitted on the sweep."""

DOWN_RAMP_US = 0.33
"""The same for a down kernel, with its short loops and small stores, us. Fitted on the sweep."""

SHALLOW_RAMP_US = 1.5
"""The same for a vendor GEMM of one or two K steps (an up product), us. Fitted: torch.compile at M = 1 and 16."""

POINTWISE_RAMP_US = 0.5
"""The same for an elementwise kernel, us. Fitted: eager less GEMM alone at M = 1."""

SKINNY_GEMM_US = 8.0
"""Floor of a vendor GEMM with a narrow side and a deep K, us. Measured 7 to 10 "whatever its size"."""

SKINNY_N = 128
"""Columns up to which the floor applies. Highest rank in use."""

JOIN_US = 1.3
"""Opening an accumulator with the joined product before the K loop can start, us. Fitted: split main over inline main at
64 rows."""

SLICE_US = 0.1
"""One more slice of partial sums read by every tile of the consumer, us. Measured: 32 slices pay at one row."""

INLINE_STREAM = 0.8
"""Streaming rate of a kernel with a second operand stream over one without. Measured: 56.3 against 62.6 us at M =
16."""

INLINE_MIN_COLUMNS = 32
"""Columns of MMA work that X@A takes at least in an inline tile. Fitted: M = 256, 133 us where split takes 108."""

EMITTED_MMA = {
    (16, 32): 0.31,
    (16, 64): 0.39,
    (16, 128): 0.39,
    (16, 256): 0.45,
    (32, 32): 0.60,
    (32, 64): 0.95,
    (32, 128): 0.73,
    (32, 256): 0.73,
    (64, 64): 0.60,
    (64, 128): 0.74,
    (64, 256): 0.78,
    (128, 128): 0.86,
    (128, 256): 0.88,
}
"""Fraction of the card's MMA rate that a pointer-load tile reaches, by (short, long) side. Fitted on the sweep; a wave
that does not fill the card shows in it too, so that it does not simply rise with the area."""

EMITTED_TMA = {(64, 256): 0.80, (128, 128): 0.90, (128, 256): 1.0}
"""The same for persistent tiles through TMA descriptors. Fitted: 2048 and 8192 rows."""

TWO_STAGES = 0.92
"""Factor on the MMA rate of a K loop with two stages: one load in flight, exposed behind every MMA. Assumed."""

NO_WGMMA = 0.42
"""Factor on a Hopper tile whose MMA rows are fewer than 64 (it falls back to the warp-level MMA). Assumed."""

VENDOR_MMA = {(128, 256): 1.0, (256, 128): 1.0, (128, 128): 0.92, (64, 256): 0.85, (64, 128): 0.72, (64, 64): 0.5}
"""Tiles (rows, columns) a vendor library is assumed to choose from, with their fraction of the MMA rate. The largest is
1 by definition (the device's rate is a large vendor GEMM's); the others assumed."""

VENDOR_BLOCK_K = 64
"""K step of those tiles, elements."""

VENDOR_SPLITS = (1, 2, 4, 8)
"""K splits a vendor library is assumed to choose from."""

GROUP_M_VENDOR = 8
"""Row blocks that a vendor kernel is assumed to walk together for L2 reuse."""

FMA_RATE = 0.6
"""Fraction of the fp32 rate that an emitted dot without tensor cores (ieee) reaches. Assumed."""
