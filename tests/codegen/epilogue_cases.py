"""Groups whose tiles end with a chain, by name, with a schedule each. Plain values: no torch, no triton."""

from dataclasses import replace

from fusioncc.chain import ROTATE_HALF, Argument, Chain, Op, Result
from fusioncc.group import Epilogue, Group, Operand
from fusioncc.schedule import Pool, Schedule, TileConfig
from tests.codegen.cases import DOWN, Lora, Main, bundled, early, group, inline, joined_last, split, two_pool

Step = tuple[str, tuple[int | str, ...], str]
"""An op: its name, its arguments (numbers of values, constants as text, with a name behind where they
need it), the dtype of its result."""


def ended(
    value: Group,
    mains: tuple[int, ...],
    *steps: Step,
    reads: tuple[Operand, ...] = (),
    results: tuple[int, ...] = (-1,),
    kept: tuple[int, ...] = (),
) -> Group:
    """The group with an epilogue of these ops on the outputs of ``mains`` (counted among main members, as ``kept``) and
    on ``reads``; ``results`` are those of the ops."""
    mains, kept = (tuple(value.mains[each] for each in some) for some in (mains, kept))
    m, n = value.m, value.members[mains[0]].n
    outputs = [value.output_of(main) for main in mains]
    inputs = (*(Operand(each.node, (m, n), (n, 1), each.dtype) for each in outputs), *reads)
    ops = tuple(_op(at, step, (m, n)) for at, step in enumerate(steps))
    made = tuple(Result(len(inputs) + at % len(ops), ops[at].node, (n, 1)) for at in results)
    chain = Chain("chain0", (m, n), inputs, ops, made)
    return replace(value, epilogues=(*value.epilogues, Epilogue(mains, chain, kept)))


def _op(at: int, step: Step, shape: tuple[int, int]) -> Op:
    target, given, dtype = step
    args = tuple(Argument(arg) if isinstance(arg, int) else Argument(None, *arg.split(" ")) for arg in given)
    return Op(f"op{at}", target if target == ROTATE_HALF else f"aten.{target}", args, dtype, shape)


def together(schedule: Schedule) -> Schedule:
    """The main pools as one, in the first one's launch."""
    mains = [pool for pool in schedule.pools if pool.role == "main"]
    whole = replace(mains[0], members=tuple(main for pool in mains for main in pool.members))
    return replace(schedule, pools=(*(pool for pool in schedule.pools if pool.role != "main"), whole))


SWIGLU: tuple[Step, ...] = (("silu.default", (0,), "bf16"), ("mul.Tensor", (2, 1), "bf16"))


def rotary(value: Group, *mains: int, head: int = 128, rows: int = 0, dtype: str = "bf16") -> Group:
    """The group with a rotary embedding of the heads of each of ``mains`` (counted among main members); ``rows`` of
    cos and sin, of which each sequence has as many, or one for each row of X."""
    rows = rows or value.m
    cos, sin = (Operand(name, (rows, head), (head, 1), dtype) for name in ("cos", "sin"))
    for main in mains:
        value = ended(
            value,
            (main,),
            ("mul.Tensor", (0, 1), dtype),
            (ROTATE_HALF, (0, str(head)), dtype),
            ("mul.Tensor", (4, 2), dtype),
            ("add.Tensor", (3, 5, "1 alpha"), dtype),
            reads=(cos, sin),
        )
    return value


def epilogues() -> dict[str, tuple[Group, Schedule, str]]:
    """Name -> group, schedule, tier."""
    pair = ended(group(64, 4096, Main(14336), Main(14336)), (0, 1), *SWIGLU)
    plain = ended(group(16, 4096, Main(14336, ()), Main(14336, ())), (0, 1), *SWIGLU)
    row = ended(group(1, 4096, Main(14336, ()), Main(14336, ())), (0, 1), *SWIGLU)
    large = ended(group(2048, 4096, Main(14336, (Lora(16),)), Main(14336, (Lora(16),))), (0, 1), *SWIGLU)
    residual, scale = Operand("res", (300, 330), (336, 1), "bf16"), Operand("scale", (1, 330), (330, 1), "fp32")
    rows, one = Operand("rows", (300, 1), (1, 1), "bf16"), Operand("one", (), (), "fp32")
    added = ended(
        group(300, 200, Main(330, (Lora(12),), bias=True)),
        (0,),
        ("add.Tensor", (0, 1, "1 alpha"), "bf16"),
        ("mul.Tensor", (5, 2), "fp32"),
        ("mul.Tensor", (6, 3), "fp32"),
        ("div.Tensor", (7, 4), "fp32"),
        reads=(residual, scale, rows, one),
        results=(0, -1),
        kept=(0,),
    )
    beside = ended(
        group(48, 200, Main(136, bias=True), Main(72, ()), Main(136, (Lora(16, up_bias=0.5),)), Main(72, ())),
        (0, 2),
        *SWIGLU,
    )
    beside = ended(beside, (1,), ("relu.default", (0,), "bf16"))
    quantised = ended(
        group(64, 256, Main(256)),
        (0,),
        ("mul.Tensor", (0, "8.0"), "bf16"),
        ("round.default", (1,), "bf16"),
        ("clamp.default", (2, "-128", "127"), "bf16"),
        ("to.dtype", (3, "torch.int8"), "int8"),
    )
    again = ended(
        group(300, 256, Main(192, (Lora(12),)), Main(192, ())),
        (0, 1),
        ("mul.Tensor", (0, 1), "bf16"),
        ("mul.Tensor", (3, 2), "bf16"),
        reads=(Operand("res", (300, 192), (192, 1), "bf16"),),
        results=(0, 1),
    )
    whole = ended(
        group(48, 256, *(Main(192, (Lora(16, dtype="fp32"),), dtype="fp32") for _ in range(2)), dtype="fp32"),
        (0, 1),
        ("relu.default", (0,), "fp32"),
        ("mul.Tensor", (2, 1), "fp32"),
    )
    masked = ended(
        group(12, 256, Main(200, (Lora(8, saved=True),)), Main(200, (Lora(8),))),
        (0, 1),
        ("where.self", (2, 0, 1), "bf16"),
        ("mul.Tensor", (4, 3), "bf16"),
        reads=(Operand("mask", (12, 200), (200, 1), "bool"), Operand("column", (1, 200), (200, 1), "bf16")),
    )
    any_rows = ended(
        group(300, 200, Main(136, (Lora(12),)), Main(136, (Lora(4),)), symbol="s0*s1"),
        (0, 1),
        ("silu.default", (0,), "bf16"),
        ("mul.Tensor", (5, 1), "bf16"),
        ("mul.Tensor", (6, 2), "bf16"),
        ("add.Tensor", (7, 3, "1 alpha"), "bf16"),
        ("mul.Tensor", (8, 4), "bf16"),
        reads=(
            Operand("column", (300, 1), (1, 1), "bf16"),
            Operand("res", (300, 136), (136, 1), "bf16"),
            Operand("position", (100, 136), (136, 1), "bf16"),
        ),
    )
    tile, down = TileConfig(64, 64, 64, 4, 3), TileConfig(64, 16, 128, 4, 4)
    narrow = TileConfig(16, 32, 128, 4, 4, swap_operands=True)
    one_row = TileConfig(1, 2, 2048, 4, 1, swap_operands=True)
    tma = TileConfig(128, 128, 64, 8, 3, tma=True)
    small = TileConfig(32, 64, 32, 4, 3)
    return {
        **rotaries(tile, down),
        "inline_swiglu": (pair, together(inline(pair, tile)), "fp32"),
        "split_swiglu": (pair, early(joined_last(together(split(pair, tile, down, k_split=4)))), "fp32"),
        "split_swiglu_tma": (large, early(joined_last(together(split(large, tma, down, k_split=2)))), "fp32"),
        "split_swiglu_first": (pair, together(split(pair, tile, down)), "fp32"),
        "concat_swiglu": (plain, Schedule("concat", (Pool("main", plain.mains, narrow, 0),)), "fp32"),
        "concat_swiglu_one_row": (row, Schedule("concat", (Pool("main", row.mains, one_row, 0),)), "fp32"),
        "two_pool_swiglu": (pair, two_pool(pair, tile, down, 132, 16, 2, late=1), "fp32"),
        "split_ended_subtiles": (
            again,
            together(split(again, TileConfig(64, 64, 64, 4, 3, tma=True, epilogue_subtiles=2), down)),
            "fp32",
        ),
        "inline_ended_ieee": (whole, together(inline(whole, TileConfig(32, 32, 32, 4, 2))), "fp32"),
        "inline_ended_swapped": (
            masked,
            together(inline(masked, TileConfig(16, 32, 64, 4, 3, swap_operands=True))),
            "fp32",
        ),
        "inline_residual": (added, inline(added, small), "fp32"),
        "split_two_endings": (beside, bundled(split_by(beside, small, DOWN)), "fp32"),
        "inline_int8": (quantised, inline(quantised, tile), "fp32"),
        "inline_ended_any_rows": (any_rows, together(inline(any_rows, small)), "fp32"),
    }


def rotaries(tile: TileConfig, down: TileConfig) -> dict[str, tuple[Group, Schedule, str]]:
    """Rotary embeddings of q and k beside a plain v: a head a tile, several in one or in several tiles, ragged, through
    TMA, transposed; cos and sin of every row, of those of a sequence, of one position."""

    def q_k_v(
        m: int, *branches: Lora, k: int = 4096, widths: tuple[int, ...] = (4096, 1024, 1024), symbol: str = ""
    ) -> Group:
        return group(m, k, *(Main(n, branches) for n in widths), symbol=symbol)

    head, narrow = replace(tile, block_n=128, num_warps=8), TileConfig(16, 128, 64, 4, 4, swap_operands=True)
    few = replace(down, block_m=16, swap_operands=True)
    plain, pair = rotary(q_k_v(64), 0, 1), rotary(q_k_v(64), 0, 1, head=64, rows=32)
    wide, halves = (plain.mains[:1], plain.mains[1:])
    lora = rotary(q_k_v(16, Lora(16)), 0, 1, rows=1)
    ragged = rotary(q_k_v(300, Lora(12), k=200, widths=(320, 64, 64)), 0, 1, head=64, rows=100)
    large = rotary(q_k_v(2048, Lora(16)), 0, 1, rows=512)
    any_rows = rotary(q_k_v(2048, Lora(16), symbol="s0*s1"), 0, 1, rows=512)
    tma = TileConfig(128, 128, 64, 8, 3, tma=True)
    row, one_row = rotary(q_k_v(1), 0, 1), TileConfig(1, 2, 2048, 4, 1, swap_operands=True)
    return {
        "concat_rotary_one_row": (row, Schedule("concat", (Pool("main", row.mains, one_row, 0),)), "fp32"),
        "inline_rotary_parts": (
            lora,
            together(inline(lora, replace(narrow, block_n=32, block_k=128))),
            "fp32",
        ),
        "concat_rotary": (plain, Schedule("concat", (Pool("main", plain.mains, head, 0),)), "fp32"),
        "horizontal_rotary": (
            pair,
            Schedule("horizontal", (Pool("main", wide, head, 0), Pool("main", halves, replace(tile, num_warps=8), 0))),
            "fp32",
        ),
        "inline_rotary": (ragged, together(inline(ragged, TileConfig(32, 128, 32, 4, 3))), "fp32"),
        "split_rotary_swapped": (lora, joined_last(together(split(lora, narrow, few, k_split=4))), "fp32"),
        "split_rotary_tma": (large, early(joined_last(together(split(large, tma, down, k_split=2)))), "fp32"),
        "split_rotary_any_rows": (any_rows, bundled(together(split(any_rows, tma, down, k_split=2))), "fp32"),
    }


def split_by(value: Group, tile: TileConfig, down: TileConfig) -> Schedule:
    """``split`` with a pool for each program."""
    pools = split(value, tile, down).pools
    mains = [
        replace(pools[1], members=members, launch=1 + at) for at, members in enumerate(value.together(value.mains))
    ]
    return Schedule("split", (pools[0], *mains))
