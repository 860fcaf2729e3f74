"""The groups that the cost model is held to: layers of three public models, M from 1 to 16384, ranks 4 to 128.

Each list below is walked with a period of its own. The periods have no common factor, so no two groups are alike, and
any part of the walk is balanced over all lists: a run that stops early is a fair sample.
"""

from dataclasses import dataclass

from fusioncc.group import Branch, Group, Member, Operand, Output, Role


@dataclass(frozen=True)
class Family:
    """Sizes of a model: features of its layers, of its MLP, of all query heads and of all key heads; whether q, k and v
    have a bias."""

    hidden: int
    intermediate: int
    queries: int
    keys: int
    bias: bool = False


FAMILIES = {
    "Llama-3-8B": Family(4096, 14336, 4096, 1024),
    "Qwen2.5-7B": Family(3584, 18944, 3584, 512, bias=True),
    "Mistral-Nemo-12B": Family(5120, 14336, 4096, 1024),
}
SITES = (
    "q/k/v", "down", "k", "gate/up", "o", "plain q/k/v", "up", "v", "plain gate/up", "q", "gate",
)  # fmt: skip
"""A projection with an adapter, or several that share X; ``plain`` ones have none."""
ROWS = (64, 1000, 2048, 4096, 40, 128, 1, 8192, 16384, 512, 256, 4, 16)
"""Every third one, as a family meets them, is about as often small as large."""
RANKS = (16, 64, 4, 128, 8, 32, 24)
GROUPS = 66


@dataclass(frozen=True)
class Layer:
    """``X [m, k]`` times a weight ``[k, n]`` in bf16 for each n of ``widths``, each with an adapter of ``rank`` (0:
    none)."""

    family: str
    site: str
    m: int
    k: int
    widths: tuple[int, ...]
    rank: int
    bias: bool = False

    @property
    def label(self) -> str:
        """As a table names it."""
        return f"{self.family} {self.site}, M={self.m}" + (f", r={self.rank}" if self.rank else "")


def layer(at: int) -> Layer:
    """The group in this place of the walk."""
    name, site = list(FAMILIES)[at % len(FAMILIES)], SITES[at % len(SITES)]
    family, projections = FAMILIES[name], site.removeprefix("plain ").split("/")
    rank = 0 if site.startswith("plain") else RANKS[at % len(RANKS)]
    k = {"o": family.queries, "down": family.intermediate}.get(projections[0], family.hidden)
    widths = {"q": family.queries, "k": family.keys, "v": family.keys}
    widths |= {"gate": family.intermediate, "up": family.intermediate}
    columns = tuple(widths.get(each, family.hidden) for each in projections)
    bias = family.bias and projections[0] in ("q", "k", "v")
    return Layer(name, site, ROWS[at % len(ROWS)], k, columns, rank, bias)


def group_of(layer: Layer) -> Group:
    """The layer as the planner finds it in a graph, with weights as ``nn.Linear`` has them."""
    members: list[Member] = []
    branches: list[Branch] = []
    outputs: list[Output] = []

    def add(role: Role, n: int, k: int, bias: bool = False) -> None:
        node = f"{role}{len(outputs)}"
        added = Operand(f"bias{len(outputs)}", (n,), (1,), "bf16") if bias else None
        weight = Operand(f"{node}_weight", (k, n), (1, k), "bf16")
        members.append(Member(role, node, layer.m, n, k, weight, "bf16", added))

    for n in layer.widths:
        main = len(members)
        add("main", n, layer.k, layer.bias)
        if layer.rank:
            add("down", layer.rank, layer.k)
            add("up", n, layer.rank)
            branches.append(Branch(main, main + 1, main + 2, 2.0))
        outputs.append(Output(main, f"out{main}", "bf16"))
    lhs = Operand("x", (layer.m, layer.k), (layer.k, 1), "bf16")
    return Group("g0", lhs, tuple(members), tuple(branches), tuple(outputs))


LAYERS = tuple(map(layer, range(GROUPS)))
