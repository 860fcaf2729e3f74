"""Groups and schedules that the codegen tests emit, by name. Plain values: no torch, no triton."""

from dataclasses import dataclass, field, replace
from typing import Literal

from fusioncc.group import Branch, Group, Member, Operand, Output, Role
from fusioncc.schedule import Pool, Schedule, TileConfig


@dataclass(frozen=True)
class Lora:
    """A branch to build: rank, dtype, and what is unusual about it."""

    rank: int = 8
    dtype: str = "bf16"
    up_dtype: str = ""
    """Where B has another dtype than A."""
    scale: float = 2.0
    tensor_scales: int = 0
    saved: bool = False
    down_bias: float | None = None
    """Scale of a bias of the down member; None: no bias."""
    up_bias: float | None = None


@dataclass(frozen=True)
class Main:
    """A main member to build with its branches."""

    n: int
    branches: tuple[Lora, ...] = (Lora(),)
    bias: bool = False
    dtype: str = "bf16"
    layout: str = "nk"
    """``nk`` as ``nn.Linear`` has it, ``kn``, or ``expanded``: one column seen N times."""


@dataclass
class _Builder:
    m: int
    k: int
    members: list[Member] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)

    def member(
        self, role: Role, n: int, k: int, name: str, layout: str, dtype: str, bias: bool, bias_scale: float = 1.0
    ) -> int:
        strides = {"nk": (1, k), "kn": (n, 1), "expanded": (1, 0)}[layout]
        weight = Operand(name, (k, n), strides, dtype)
        vector = Operand(f"{name}_bias", (n,), (1,), dtype) if bias else None
        self.members.append(Member(role, f"mm_{name}", self.m, n, k, weight, dtype, vector, bias_scale))
        return len(self.members) - 1


def group(
    m: int,
    k: int,
    *mains: Main,
    dtype: str = "bf16",
    symbol: str = "",
    precision: Literal["ieee", "tf32"] = "ieee",
    x_layout: str = "mk",
) -> Group:
    """The group of these main members over ``X [m, k]``."""
    build = _Builder(m, k)
    for i, main in enumerate(mains):
        index = build.member("main", main.n, k, f"w{i}", main.layout, main.dtype, main.bias)
        for j, lora in enumerate(main.branches):
            name = f"{i}{j}"
            down = build.member(
                "down", lora.rank, k, f"a{name}", "nk", lora.dtype, lora.down_bias is not None, lora.down_bias or 1.0
            )
            up = build.member(
                "up",
                main.n,
                lora.rank,
                f"b{name}",
                "nk",
                lora.up_dtype or lora.dtype,
                lora.up_bias is not None,
                lora.up_bias or 1.0,
            )
            scales = tuple(Operand(f"s{name}{at}", (), (), dtype) for at in range(lora.tensor_scales))
            build.branches.append(Branch(index, down, up, lora.scale, scales, lora.saved))
        build.outputs.append(Output(index, f"add{i}", dtype))
    lhs = Operand("x", (m, k), (k, 1) if x_layout == "mk" else (1, m), dtype)
    return Group("g0", lhs, tuple(build.members), tuple(build.branches), tuple(build.outputs), symbol, precision)


def inline(value: Group, tile: TileConfig, group_m: int = 8) -> Schedule:
    """``inline`` with one tile config for every main member."""
    pools = [Pool("main", (main,), tile, i, group_m=group_m) for i, main in enumerate(value.mains)]
    return Schedule("inline", tuple(pools))


def bundled(schedule: Schedule) -> Schedule:
    """The schedule with its main members in one launch."""
    first = min(pool.launch for pool in schedule.pools if pool.role == "main")
    pools = (replace(pool, launch=first) if pool.role == "main" else pool for pool in schedule.pools)
    return replace(schedule, pools=tuple(pools))


def split(value: Group, tile: TileConfig, down: TileConfig, k_split: int = 1, group_m: int = 8) -> Schedule:
    """``split``: one launch for all down members, then one for each main member."""
    downs = tuple(i for i, member in enumerate(value.members) if member.role == "down")
    workers = 3 if tile.tma else None
    mains = tuple(
        Pool("main", (main,), tile, 1 + i, workers=workers, group_m=group_m, joins_last=tile.one_row)
        for i, main in enumerate(value.mains)
    )
    return Schedule("split", (Pool("down", downs, down, 0, k_split=k_split), *mains))


def early(schedule: Schedule) -> Schedule:
    """The first main launch starts during the down launch before it."""
    return replace(schedule, pools=tuple(replace(pool, dependent=pool.launch == 1) for pool in schedule.pools))


def joined_last(schedule: Schedule) -> Schedule:
    """The same ``split`` with its low-rank products joined behind the K loops."""
    pools = (replace(pool, joins_last=pool.role == "main") for pool in schedule.pools)
    return replace(schedule, pools=tuple(pools))


def side_by_side(
    value: Group, kind: str, tile: TileConfig, down: TileConfig, k_split: int = 1, main_split: int = 1
) -> Schedule:
    """``concat`` or ``horizontal``: mains and downs in one launch, joins in the next; ``concat`` has one tile shape."""
    joined = tuple(main for main in value.mains if value.branches_of(main) or main_split > 1)
    downs = tuple(i for i, member in enumerate(value.members) if member.role == "down")
    workers = 3 if tile.tma else None
    if kind == "concat":
        down = replace(tile, block_n=down.block_n)
        pools = [Pool("main", value.mains, tile, 0, workers=workers, group_m=2)]
    else:
        tiles = [tile, replace(tile, block_n=tile.block_n // 2)]
        pools = [
            Pool("main", (main,), tiles[at % 2], 0, workers=workers, group_m=2) for at, main in enumerate(value.mains)
        ]
    pools = [replace(pool, k_split=main_split) for pool in pools]
    if downs:
        pools.append(Pool("down", downs, down, 0, k_split=k_split))
    if joined:
        pools.append(Pool("up", joined, TileConfig(16, 64, 16, 4, 2), 1))
    return Schedule(kind, tuple(pools))


def streams(value: Group, down: TileConfig, k_split: int = 1) -> Schedule:
    """``streams``: vendor mains beside one launch for all down members, then one join; no launch without branches."""
    joined = tuple(main for main in value.mains if value.branches_of(main))
    downs = tuple(i for i, member in enumerate(value.members) if member.role == "down")
    pools = (Pool("down", downs, down, 0, k_split=k_split), Pool("up", joined, TileConfig(16, 64, 16, 4, 2), 1))
    return Schedule("streams", pools if joined else ())


def k_concat(value: Group, down: TileConfig, k_split: int = 2) -> Schedule:
    """``k_concat``: one pass over X for all down members, and one launch that adds its slices."""
    sums = Pool("up", value.joined, TileConfig(16, 16, 16, 4, 1), 1)
    return Schedule("k_concat", (Pool("down", value.downs, down, 0, k_split=k_split), sums))


def two_pool(
    value: Group,
    tile: TileConfig,
    down: TileConfig,
    workers: int,
    downs: int,
    k_split: int,
    chunk: int | None = None,
    late: int = 0,
) -> Schedule:
    """``two_pool`` with main tiles from stripes, or from a queue of chunks."""
    members = tuple(i for i, member in enumerate(value.members) if member.role == "down")
    down = replace(down, num_warps=tile.num_warps, num_stages=tile.num_stages, block_m=tile.block_m)
    return Schedule(
        "two_pool",
        (
            Pool("down", members, down, 0, workers=downs, k_split=k_split, late=late),
            Pool("main", value.mains, tile, 0, workers=workers, chunk=chunk, group_m=2),
        ),
    )


TILE = TileConfig(32, 64, 64, 4, 3)
"""Four steps over K=200, the last of them ragged."""
DOWN = TileConfig(32, 16, 64, 4, 3)
SWAPPED = TileConfig(16, 32, 64, 4, 3, swap_operands=True)
DESCRIBED = TileConfig(64, 64, 32, 4, 3, tma=True)
"""TMA tiles; a pool of them is persistent."""
