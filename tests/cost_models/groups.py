"""Groups for tests of the cost models: a LoRA layer, bundles, the projections of a Llama layer."""

from fusioncc.group import DTYPE_BYTES, Branch, Group, Member, Operand, Output


def operand(node: str, *shape: int, dtype: str = "bf16") -> Operand:
    """A weight ``[K, N]`` in ``nn.Linear`` layout (or any other contiguous operand)."""
    strides = (1, shape[0]) if len(shape) == 2 and node != "x" else (shape[-1], 1)[-len(shape) :]
    return Operand(node, shape, strides, dtype)


def bundle(m: int, k: int, *mains: tuple[int, int], dtype: str = "bf16", adapter: str = "", **branch: bool) -> Group:
    """A group with one main member for each ``(n, r)``; r = 0: no branch."""
    adapter = adapter or dtype
    wide = dtype if DTYPE_BYTES[adapter] <= DTYPE_BYTES[dtype] else adapter
    members: list[Member] = []
    branches: list[Branch] = []
    outputs: list[Output] = []
    for n, r in mains:
        at = len(members)
        members.append(Member("main", f"mm{at}", m, n, k, operand(f"w{at}", k, n, dtype=dtype), dtype))
        outputs.append(Output(at, f"mm{at}", dtype))
        if r:
            members.append(Member("down", f"mm{at + 1}", m, r, k, operand(f"a{at}", k, r, dtype=adapter), wide))
            members.append(Member("up", f"mm{at + 2}", m, n, r, operand(f"b{at}", r, n, dtype=adapter), wide))
            branches.append(Branch(at, at + 1, at + 2, 2.0, **branch))
            outputs[-1] = Output(at, f"add{at}", dtype)
    return Group("g", operand("x", m, k, dtype=dtype), tuple(members), tuple(branches), tuple(outputs))


def lora(m: int, k: int, n: int, r: int, **more: str) -> Group:
    """``X@W + 2 (X@A)@B``."""
    return bundle(m, k, (n, r), **more)


def llama_layer(m: int, r: int = 16) -> tuple[Group, ...]:
    """The four groups of a Llama-8B layer: q/k/v, o, gate/up, down."""
    return (
        bundle(m, 4096, (4096, r), (1024, r), (1024, r)),
        bundle(m, 4096, (4096, r)),
        bundle(m, 4096, (14336, r), (14336, r)),
        bundle(m, 14336, (4096, r)),
    )
