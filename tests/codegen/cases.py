"""Groups and schedules that the codegen tests emit, by name. Plain values: no torch, no triton."""

from dataclasses import dataclass, field
from typing import Literal

from fusioncc.codegen import EmittedModule, emit
from fusioncc.group import Branch, Group, Member, Operand, Output, Role
from fusioncc.schedule import Pool, Schedule, TileConfig


@dataclass(frozen=True)
class Lora:
    """A branch to build: rank, dtype, and what is unusual about it."""

    rank: int = 8
    dtype: str = "bf16"
    scale: float = 2.0
    tensor_scales: int = 0
    saved: bool = False
    down_bias: float | None = None
    """Scale of a bias of the down member; None: no bias."""
    up_bias: float | None = None
    layout: str = "nk"


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
        self, role: Role, n: int, k: int, name: str, of: Main | Lora, *, bias: bool, bias_scale: float | None = None
    ) -> int:
        strides = {"nk": (1, k), "kn": (n, 1), "expanded": (1, 0)}[of.layout]
        weight = Operand(name, (k, n), strides, of.dtype)
        vector = Operand(f"{name}_bias", (n,), (1,), of.dtype) if bias else None
        scale = 1.0 if bias_scale is None else bias_scale
        self.members.append(Member(role, f"mm_{name}", self.m, n, k, weight, of.dtype, vector, scale))
        return len(self.members) - 1


def group(
    m: int,
    k: int,
    *mains: Main,
    dtype: str = "bf16",
    out: str = "",
    symbol: str = "",
    precision: Literal["ieee", "tf32"] = "ieee",
    x_layout: str = "mk",
) -> Group:
    """The group of these main members over ``X [m, k]`` in ``dtype``; outputs in ``out``, or in X's dtype."""
    build = _Builder(m, k)
    for i, main in enumerate(mains):
        index = build.member("main", main.n, k, f"w{i}", main, bias=main.bias)
        for j, lora in enumerate(main.branches):
            biases = {"down": lora.down_bias, "up": lora.up_bias}
            down, up = (
                build.member(role, n, depth, f"{role}{i}{j}", lora, bias=biases[role] is not None, bias_scale=biases[role])
                for role, n, depth in (("down", lora.rank, k), ("up", main.n, lora.rank))
            )
            scales = tuple(Operand(f"scale{i}{j}{at}", (), (), dtype) for at in range(lora.tensor_scales))
            build.branches.append(Branch(index, down, up, lora.scale, scales, lora.saved))
        build.outputs.append(Output(index, f"add{i}", out or dtype))
    lhs = Operand("hidden_states", (m, k), (k, 1) if x_layout == "mk" else (1, m), dtype)
    return Group("layer0", lhs, tuple(build.members), tuple(build.branches), tuple(build.outputs), symbol, precision)


def inline(value: Group, tile: TileConfig, group_m: int = 8) -> Schedule:
    """``inline`` with one tile config for every main member."""
    pools = (Pool("main", (main,), tile, i, group_m=group_m) for i, main in enumerate(value.mains))
    return Schedule("inline", tuple(pools))


def split(value: Group, tile: TileConfig, down: TileConfig, k_split: int = 1, group_m: int = 8) -> Schedule:
    """``split``: one launch for all down members, then one for each main member."""
    downs = tuple(i for i, member in enumerate(value.members) if member.role == "down")
    mains = tuple(Pool("main", (main,), tile, 1 + i, group_m=group_m) for i, main in enumerate(value.mains))
    return Schedule("split", (Pool("down", downs, down, 0, k_split=k_split), *mains))


TILE = TileConfig(32, 64, 32, 4, 3)
DOWN = TileConfig(32, 16, 32, 4, 3)
SWAPPED = TileConfig(16, 64, 32, 4, 3, swap_operands=True)


@dataclass(frozen=True)
class Case:
    """What one module is emitted from."""

    group: Group
    schedule: Schedule
    tier: str = "fp32"

    def emitted(self, name: str) -> EmittedModule:
        return emit(self.group, self.schedule, name=name, tier=self.tier, why="a test asks for it")


def golden() -> dict[str, Case]:
    """Modules whose source is kept, by name: realistic sizes and tiles, and every form of code once."""
    big, wide = TileConfig(64, 128, 64, 4, 4), TileConfig(128, 256, 64, 8, 3)
    narrow = TileConfig(16, 128, 128, 4, 4, swap_operands=True)
    down = TileConfig(64, 16, 128, 4, 4)
    mlp = group(64, 4096, Main(28672))
    heads = ((4096, 16), (1024, 16), (1024, 8))
    q_k_v = group(512, 4096, *(Main(n, (Lora(rank, dtype="fp32"),)) for n, rank in heads), symbol="s0")
    row = group(1, 4096, Main(28672))
    ragged = group(
        300, 200, Main(330, (Lora(12, tensor_scales=1, scale=0.5), Lora(4, saved=True)), bias=True, layout="kn")
    )
    biased = group(
        48,
        256,
        Main(192, (Lora(16, dtype="fp32", down_bias=0.5, up_bias=2.0),), dtype="fp32", bias=True),
        dtype="fp32",
        precision="tf32",
    )
    plain = group(300, 200, Main(330, (Lora(12),)))
    saved = group(2048, 4096, Main(4096, (Lora(16, saved=True),)))
    return {
        "inline_mlp": Case(mlp, inline(mlp, big)),
        "inline_swapped": Case(row, inline(row, narrow)),
        "inline_qkv_fp32_adapters": Case(q_k_v, inline(q_k_v, big)),
        "inline_ragged": Case(ragged, inline(ragged, TILE, group_m=4)),
        "inline_fp32": Case(biased, inline(biased, TILE)),
        "split_mlp": Case(mlp, split(mlp, big, down, k_split=8)),
        "split_qkv_relaxed": Case(q_k_v, split(q_k_v, TileConfig(128, 128, 64, 8, 3), down, k_split=4), "relaxed"),
        "split_ragged": Case(plain, split(plain, TILE, DOWN, k_split=3)),
        "split_saved": Case(saved, split(saved, wide, down)),
    }
