"""Every calibrated constant of the cost models, with its unit and where it comes from.

What belongs to a card (bandwidths, rates, the gap between two launches) is in :class:`fusioncc.device.Device`. What is
here belongs to the code that runs on it: vendor kernels and Triton kernels. Times quoted as
measured are of a LoRA forward with K = 4096, N = 28672 unless said otherwise, on one H200 (torch 2.11, triton 3.6,
graph replay, weights streaming from memory). "Fitted" constants were chosen to meet those times, "fitted on the sweep"
ones on half the shapes of ``benchmarks/results/sweep_tiles.json`` (the other half checks them); "assumed" ones wait for
a calibration.
"""

READ_GAIN = 1.08
"""Rate of a pure read over that of a copy (a copy turns the bus around). Weight streaming at M = 1: 4.6 against 4.26
TB/s."""

L2_RESIDENT = 0.8
"""Fraction of the L2 that a tensor may fill and still be found there by the next kernel. Assumed (hashing, other
data)."""

L2_SM_SHARE = 1.6
"""What one multiprocessor can draw from the L2, as a multiple of its fair share
(``datasheets.L2_BYTES_CLOCK``): 64 bytes a clock, the width of its port."""

LOAD_LATENCY_US = 0.45
"""Time of a load under way while others hide it: a K loop of s stages takes this over s - 1 a step, us. Fitted on the
sweep."""

EXPOSED_LOAD_US = 0.5
"""Time that each K step of an inline tile waits for A where the warp-level MMA of Hopper keeps that load out of the
pipeline, us. Fitted on the sweep: 64 rows, 32-row tiles, inline against split main. A tf32 tile waits likewise for the
operands it rounds (measured at 16 rows, K = N = 4096: 41 us where 28 were predicted without)."""

JOIN_US = 7.0
"""Reading the partial sums and B and opening the accumulator before the K loop can start, us, once for each program
that a multiprocessor runs one after another. Hidden like a load where others stream. Fitted on the sweep."""

EMITTED_RAMP_US = 0.37
"""First load and last store of an emitted kernel that nothing hides, us. Fitted on the sweep (down kernels)."""

GEMM_RAMP_US = 1.5
"""The same for a vendor GEMM, us. Fitted: GEMM alone and torch.compile on the shapes of the
sweep."""

SHALLOW_RAMP_US = 1.5
"""The same for a vendor GEMM of one or two K steps (an up product), us. Fitted: torch.compile at M = 1 and 16."""

POINTWISE_RAMP_US = 0.5
"""The same for an elementwise kernel, us. Fitted: eager less GEMM alone at M = 1."""

SKINNY_GEMM_US = 7.0
"""Floor of a vendor GEMM with a narrow side and a deep K, us. Measured 7 to 10 "whatever its size"."""

SKINNY_N = 128
"""Columns up to which the floor applies. Highest rank in use."""

EARLY_START_US = 0.7
"""From the start of a launch until the programs of a dependent one run beside it, us. Fitted with ``LAST_JOIN_US``:
adapters cost 1.2 to 2.5 us at 1 to 64 rows."""

EARLY_SAVES_US = 1.2
"""What starting early saves a launch that waits before its K loop: most of the gap between two launches, us. Measured:
1.0 to 1.5 at 256 to 2048 rows."""

LAST_JOIN_US = 1.2
"""Reading the partial sums and B behind the K loop, us, for the last programs of a launch: the others' hide behind
loads."""

TMA_JOIN_US = 2.5
"""The same for each tile of a persistent program, us, beside the slices that each reads (``SLICE_US_KB``). Fitted at
256 to 8192 rows, 1 to 27 tiles a program."""

BESIDE_TILE_US = 0.4
"""Tile of X or of an A in a K step of a down pass beside main tiles that stream from memory, us: each load waits its
turn. Measured with one branch: 16 steps hide behind main tiles of 14 us, 32 show by 4 to 5 us, 56 by 12 behind tiles of
36; with three at one row 0.16, where the loads are not pipelined."""

BESIDE_TMA_US = 1.0
"""The same beside main tiles through TMA, us for all of a step. Measured with one branch: 16 steps hide behind tiles of
20 us, 56 behind tiles of 56."""

BESIDE_TAKES_US = 0.2
"""What a K step of a down tile takes from the main tiles on its multiprocessor, us for each such step there. Fitted on
an H200 at 256 to 8192 rows: passes of the same length in 64 programs and in 256 are 11 us apart at 2048 rows, and 52 at
8192."""

ROW_STEP_US = 0.5
"""K step of a down tile of one row, us: few programs, which hide nothing of each other. Measured: 0.6 beside main
tiles."""

ROW_LATENCY_US = 0.1
"""Time of a program with a tile of one row that nobody else delays, us: the loads of all its steps, and of its
neighbours, are under way together. Fitted with ``ROW_DRAW`` at N = 6144 and 28672."""

ROW_DRAW = 0.4
"""What such a tile takes of a multiprocessor's L2 port over one whose operands pass through shared memory."""

ROW_RATE = 0.4
"""Fraction of the fp32 rate of a tile of one row: beside its multiply-add it widens both operands. Assumed."""

ATOMIC_US = 0.7
"""One atomic of a waiting kernel, there and back: a tile taken, a flag published or read, us. Assumed: a round trip to
the L2."""

SLICE_US_KB = 0.04
"""One more slice of partial sums read by every tile of the consumer, us for each KiB of it. Measured behind a K loop:
0.02 us at 16x16, 0.2 at 64x16, 0.5 at 64x64."""

INLINE_MIN_COLUMNS = 32
"""Columns of MMA work that X@A takes at least: a narrow dot takes the time of a wider one. Chosen on all
shapes of the sweep: the largest that leaves inline and split in their measured order."""

EMITTED_MMA = 1.15
"""MMA rate of an emitted tile over the device's (a sustained rate of a whole GEMM): 0.87 of the H200's datasheet. What
narrow tiles lose is in their traffic through the L2. Fitted on the sweep."""

SUSTAINED, TMA_SUSTAINED, POINTER_SUSTAINED = 0.93, 0.92, 0.76
"""MMA rate over the device's that the card's power sustains: in a vendor GEMM, in emitted tiles through descriptors,
and in those through pointers, which issue the most instructions. Fitted on an H200 that was kept busy, 2048 and 8192
rows: there they reach 670 to 710, 640 to 680 and 470 to 590 TFLOP/s."""

SMALL_TILE, SMALL_TMA = 64 * 128, 0.75
"""Elements of the output, and factor on a TMA tile of no more. Fitted with 64x128: 15 to 18 us a tile of K = 4096 and
56 of 14336, at 128 to 512 rows."""

NO_WGMMA = 0.38
"""Factor on a Hopper tile whose MMA rows are fewer than 64 (it falls back to the warp-level MMA). Fitted on the
sweep."""

TMA_DRAW = 0.4
"""What a tile through descriptors takes of a multiprocessor's L2 port over the same tile through pointers (no address
or issue work in the threads). Fitted: persistent split mains of 256 to 8192 rows, to within 7 %."""

VENDOR_TILES = ((128, 256), (256, 128), (128, 192), (192, 128), (128, 128), (64, 256), (64, 128), (64, 64))
"""Tiles (rows, columns) a vendor library is assumed to choose from; they run at the rate of emitted tiles. Those of 192
fill a card where others leave a wave half empty: 37 us at (512, 4096, 6144), where 44 were predicted without."""

VENDOR_STAGES = 6
"""Stages of their K loop. Fitted with the ramp; 5 to 8 do alike."""

VENDOR_BLOCK_K = 64
"""K step of those tiles, elements."""

VENDOR_SPLITS = (1, 2, 4, 8)
"""K splits a vendor library is assumed to choose from."""

GROUP_M_VENDOR = 8
"""Row blocks that a vendor kernel is assumed to walk together for L2 reuse."""

FMA_RATE = 0.1
"""Fraction of the fp32 rate that an emitted dot without tensor cores (ieee, compensated) reaches. Measured with
K = N = 4096: 0.15 at 2048 rows, 0.05 at 16 (5 and 3 times the vendor GEMM's time)."""

TF32_RATE = 0.3
"""Factor on the MMA rate of an emitted tf32 tile, whose operands pass through registers to be rounded. Measured with
K = N = 4096: 42 us at 64 rows and 117 at 512, where 25.7 and 66 were predicted with rounding for free."""
