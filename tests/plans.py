"""Hand-made plans for tests of what is said about them."""

from fusioncc.decision import Rejected
from fusioncc.group import Branch, Group, Member, Operand, Output
from fusioncc.plan import SCHEMA, GroupPlan, Plan
from fusioncc.schedule import Candidate, Estimate, Footprint, Pool, Schedule, TileConfig

INLINE = Schedule("inline", (Pool("main", (0,), TileConfig(64, 128, 64), launch=0),))
MIB = 1 << 20


def operand(node: str, *shape: int) -> Operand:
    return Operand(node, shape, (shape[-1], 1)[-len(shape) :], "bf16")


def lora_group(name: str = "g0", node: str = "mm") -> Group:
    """X [64, 4096] with one main member of N=28672 and one branch of rank 8."""
    main = Member("main", node, 64, 28672, 4096, operand("w", 4096, 28672), "bf16", source="mlp.up_proj")
    down = Member("down", f"{node}_down", 64, 8, 4096, operand("a", 4096, 8), "bf16")
    up = Member("up", f"{node}_up", 64, 28672, 8, operand("b", 8, 28672), "bf16")
    lhs = operand("x", 64, 4096)
    return Group(name, lhs, (main, down, up), (Branch(0, 1, 2, scale=2.0),), (Output(0, f"{node}_sum", "bf16"),))


def candidates() -> tuple[Candidate, ...]:
    estimate = Estimate(62.7, 240 * MIB, 10, 1, terms=(("dram", 60.0), ("launch", 1.5)), binds="dram")
    return (
        Candidate("inline", True, "", 62.7, INLINE, estimate),
        Candidate("library", True, "", 77.8, Schedule("library")),
        Candidate("split", False, "K=4096 cannot be cut into 7 slices"),
    )


def planned(group: Group, kernel: str = "k0_inline") -> GroupPlan:
    return GroupPlan(
        **{name: getattr(group, name) for name in group.__dataclass_fields__},
        schedule=INLINE,
        why="15.1 us less than library: one launch, X read once",
        tier="fp32",
        candidates=candidates(),
        before=Footprint(4, 245 * MIB, 240 * MIB),
        after=Footprint(1, 240 * MIB, 238 * MIB),
        kernel=kernel,
        insertion="visible",
    )


def lora_plan(*groups: GroupPlan, rejections: tuple[Rejected, ...] = (), fallback: str = "") -> Plan:
    return Plan(
        SCHEMA, "h200", "0123456789abcdef", groups or (planned(lora_group()),), rejections, ("a note",), fallback
    )
