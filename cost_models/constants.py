"""Every calibrated constant of the cost models, with its unit and where it comes from.

What belongs to a card (bandwidths, rates, the gap between two launches) is in :class:`fusioncc.device.Device`. What is
here belongs to the code that runs on it: vendor kernels and Triton kernels. Times quoted as measured are of a LoRA
forward with K = 4096, N = 28672 unless said otherwise, on one H200 (torch 2.11, triton 3.6, graph replay, weights
streaming from memory). "Fitted" constants were chosen to meet those times, "fitted on the sweep" ones on half the
shapes of ``benchmarks/results/sweep_tiles.json`` (the other half checks them), "fitted on the layers" ones on the Llama
layers of ``benchmarks/results/cost_model.json`` and on ``schedules.json`` (the other families check them); "assumed"
ones wait for a calibration.
"""

READ_GAIN = 1.14
"""Rate of a pure read over that of a copy (a copy turns the bus around). Weight streaming at M = 1: 4.6 against 4.03
TB/s."""

L2_RESIDENT = 0.8
"""Fraction of the L2 that a tensor may fill and still be found there by the next kernel. Assumed (hashing, other
data)."""

L2_SM_SHARE = 1.23
"""What one multiprocessor can draw from the L2, as a multiple of its fair share (``datasheets.L2_BYTES_CLOCK``); its
port of 64 bytes a clock would allow 1.45. Fitted on the layers."""

LOAD_LATENCY_US = 0.6
"""Time of a load under way while others hide it: a K loop of s stages takes this over s - 1 a step, us. Fitted on the
layers."""

EXPOSED_LOAD_US = 0.2
"""Time that each K step of an inline tile waits for A where the warp-level MMA of Hopper keeps that load out of the
pipeline, us. Fitted on the layers."""

NORMED_DOT_US = 0.8
"""What each product of a K step of a tile behind a norm waits for X, which comes to it through registers, us. Measured
on an H200 at 4 to 64 rows, K = 4096: 0.6 (gate and up in one tile) to 0.9, in one case 1.5."""

NORM_OPS = 8
"""Instructions for each element of X that a tile behind a norm has in its K loop: widened, squared and added, scaled,
rounded, and moved through registers. Counted, not measured."""

ROUNDED_LOAD_US = 0.5
"""Time that each K step of a tf32 tile waits for the operands that it rounds, us. Measured at 16 rows, K = N = 4096: 41
us where 28 were predicted without."""

CUT_US = 0.73
"""Time that each K step takes to cut one fp32 A into bf16 pieces and to wait for their MMA, us. Measured on an H200 at
512 rows: passes of 4, 16 and 56 steps, of one, two and three A, take 0.70 to 0.81 us longer a step and A than over bf16
adapters."""

CUT_JOIN_US = 1.3
"""What six MMAs of bf16 pieces take longer than one where a tile joins an fp32 adapter, us for a tile of 128x256 and a
padded rank of 16. Counted: 245 clocks each, and a wait."""

JOIN_US = 2.0
"""Reading the partial sums and B and opening the accumulator before the K loop can start, us, once for each program
that a multiprocessor runs one after another. Hidden like a load where others stream. Fitted on the layers."""

EMITTED_RAMP_US = 1.14
"""First load and last store of an emitted kernel that nothing hides, us. Fitted on the layers."""

GEMM_RAMP_US = 2.84
"""The same for a vendor GEMM, us. Fitted on the layers and on plain bundles."""

SHALLOW_RAMP_US = 2.34
"""The same for a vendor GEMM of one or two K steps (an up product), us. Fitted: torch.compile at M = 1 and 16."""

POINTWISE_RAMP_US = 1.34
"""The same for an elementwise kernel, us. Fitted: eager less GEMM alone at M = 1."""

SKINNY_GEMM_US = 6.0
"""Floor of a vendor GEMM with a narrow side and a deep K, us. Fitted on the layers; measured alone 7 to 10 "whatever
its size"."""

SKINNY_N = 128
"""Columns up to which the floor applies. Highest rank in use."""

EARLY_START_US = 0.3
"""From the start of a launch until the programs of a dependent one run beside it, us. Fitted on the layers: adapters
cost 1.2 to 2.5 us at 1 to 64 rows."""

EARLY_SAVES_US = 1.2
"""What starting early saves a launch that waits before its K loop: most of the gap between two launches, us. Measured:
1.0 to 1.5 at 256 to 2048 rows."""

LAST_JOIN_US = 0.5
"""Reading the partial sums and B behind the K loop, us, for the last programs of a launch: the others' hide behind
loads. A launch that only joins takes as long."""

ROW_JOIN_US = 1.3
"""The same for tiles of one row, whose programs are short, us. Fitted on the layers."""

PAIRED_ROW_JOIN_US = 3.3
"""The same, beside it, where a program joins several members before it ends (one row, gate and up: 60.1 us)."""

TMA_JOIN_US = 1.2
"""The same for each tile of a persistent program, us, beside the slices that each reads (``SLICE_US_KB``). Fitted on
the layers, 1 to 27 tiles a program."""

BESIDE_TILE_US = 0.3
"""Tile of X or of an A in a K step of a down pass beside main tiles that stream from memory, us: each load waits its
turn. Fitted on the layers."""

BESIDE_TILE_BYTES = 16384
"""Bytes of operands from which a K step of such a pass takes the time of one more tile. Measured at 128 rows, r = 128:
16.6 us beside a pass in steps of 18 KiB, 19.1 beside one of 64."""

ADDED_SLICE_US = 0.07
"""A slice of the product or of partial sums in a launch that only adds and joins, us. Fitted on the layers; measured
at 16 rows, N = 1024: 7.8 us with 4 and 4 slices, 9.9 with 8 and 8."""

BESIDE_TMA_US = 0.5
"""The same beside main tiles through TMA, us for all of a step. Fitted on the layers."""

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

ROW_LOOP = 1.2
"""Factor on the time of the memory for main tiles of one row whose loop is not unrolled. Measured: 37 us at (1, 14336,
4096), where 31 were predicted without."""

ROW_RATE = 0.48
"""Fraction of the fp32 rate of a tile of one row: beside its multiply-add it widens both operands. Assumed."""

SLICE_US_KB = 0.03
"""One more slice of partial sums read by every tile of the consumer, us for each KiB of it. Measured behind a K loop:
0.02 us at 16x16, 0.2 at 64x16, 0.5 at 64x64."""

INLINE_MIN_COLUMNS = 32
"""Columns of MMA work that X@A takes at least: a narrow dot takes the time of a wider one. Chosen on all
shapes of the sweep: the largest that leaves inline and split in their measured order."""

EMITTED_MMA = 1.27
"""MMA rate of an emitted tile over the device's (a sustained rate of a whole GEMM): 0.87 of the H200's datasheet. What
narrow tiles lose is in their traffic through the L2. Fitted on the sweep."""

SUSTAINED, TMA_SUSTAINED, POINTER_SUSTAINED = 1.025, 1.014, 0.838
"""MMA rate over the device's that the card's power sustains: in a vendor GEMM, in emitted tiles through descriptors,
and in those through pointers, which issue the most instructions. Fitted on an H200 that was kept busy, 2048 and 8192
rows: there they reach 670 to 710, 640 to 680 and 470 to 590 TFLOP/s."""

SMALL_TILE, SMALL_TMA = 64 * 128, 0.65
"""Elements of the output, and factor on a TMA tile of no more. Fitted on the layers."""

SHARED_ROWS = 0.9
"""Factor on a Hopper tile whose warp groups have less than 64 rows each: two of them share its rows, and both read X.
Fitted on the layers: 64x256 with 8 warps takes 79 us where 128x256 takes 55 (inline, 8192 rows, N = 512), 64x128 1.2
times as long with 8 warps as with 4."""

NO_WGMMA = 0.18
"""Factor on a Hopper tile whose MMA rows are fewer than 64 (it falls back to the warp-level MMA). Fitted on the
layers."""

TMA_DRAW = 0.33
"""What a tile through descriptors takes of a multiprocessor's L2 port over the same tile through pointers (no address
or issue work in the threads). Fitted on the layers."""

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

FMA_RATE = 0.12
"""Fraction of the fp32 rate that an emitted dot without tensor cores (ieee, compensated) reaches. Measured with
K = N = 4096: 0.15 at 2048 rows, 0.05 at 16 (5 and 3 times the vendor GEMM's time)."""

TF32_RATE = 0.283
"""Factor on the MMA rate of an emitted tf32 tile, whose operands pass through registers to be rounded. Measured with
K = N = 4096: 42 us at 64 rows and 117 at 512, where 25.7 and 66 were predicted with rounding for free."""
