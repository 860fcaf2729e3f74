"""Vocabulary of GEMM groups: plain frozen values, no torch.

A group is n GEMMs that read one LHS ``X [M, K]`` after views and casts are peeled. A *main* member's product is an
output; a *down* member ``X @ A`` is the first half of a low-rank branch whose *up* member ``(X @ A) @ B`` is added to a
main member. Shapes are written in the order of the mathematics: a weight is ``[K, N]`` whatever its memory layout, and
its strides (in elements) say how it lies. Nodes are named, not held: a group can be printed, hashed and read back.
"""

from dataclasses import dataclass, replace
from typing import Literal, Self

from fusioncc.chain import Chain
from fusioncc.operand import DTYPE_BYTES, EMITTED_DTYPES, Operand

__all__ = [
    "DTYPE_BYTES",
    "EMITTED_DTYPES",
    "Branch",
    "Epilogue",
    "Group",
    "Member",
    "Norm",
    "Operand",
    "Output",
    "Role",
]
Role = Literal["main", "down", "up"]


@dataclass(frozen=True)
class Member:
    """One GEMM ``[m, k] @ [k, n]``. For a down member n is the rank; for an up member k is the rank."""

    role: Role
    node: str
    m: int
    n: int
    k: int
    weight: Operand
    dtype: str
    """dtype in which the graph holds the product."""
    bias: Operand | None = None
    bias_scale: float = 1.0
    """Factor on the bias of a down or up member by the time it reaches the sum (scales behind it, multiplied)."""
    batch: int = 1
    source: str = ""
    """Module path, when the capture recorded one."""


@dataclass(frozen=True)
class Branch:
    """A low-rank branch: members ``down`` and ``up`` (indices) joined to member ``main``.

    The branch adds ``scale * prod(scale_tensors) * (X @ A) @ B``; all constant scales, wherever they stood
    (on X, on A's product, on B's product), are multiplied into ``scale``.
    """

    main: int
    down: int
    up: int
    scale: float = 1.0
    scale_tensors: tuple[Operand, ...] = ()
    saved: bool = False
    """The down product has a user outside the branch (saved for a backward) and is written out, in its own dtype."""


@dataclass(frozen=True)
class Output:
    """What the region of a main member gives to the rest of the graph.

    ``node`` is the last node of the region (the sum with all branches, or the cast right behind it), replaced by the
    kernel's output ``[M, N]`` in ``dtype``.
    """

    main: int
    node: str
    dtype: str


@dataclass(frozen=True)
class Epilogue:
    """A chain that the tiles of some main members end with: their accumulators are its first inputs, and what it makes
    is stored in the place of their outputs.

    ``mains`` (indices) have one N; tiles of several are computed by one program. ``chain`` is written for matrices: its
    shape is ``[M, N]``, that of an input or a value ``[m, n]`` or ``[]``, and its results lie row by row. A side that
    is a part of M or of N (1, the rows of a sequence, the columns of a head) is repeated.
    """

    mains: tuple[int, ...]
    chain: Chain
    kept: tuple[int, ...] = ()
    """Main members whose output the rest of the graph reads too, and which is written as well."""

    @property
    def operands(self) -> tuple[Operand, ...]:
        """What it reads beside the accumulators."""
        return self.chain.inputs[len(self.mains) :]

    @property
    def head(self) -> int:
        """Columns of which a tile has a multiple: those of the heads whose halves it rotates."""
        return max(op.head for op in self.chain.ops)

    def signature(self) -> "Epilogue":
        """The epilogue with every name removed."""
        return replace(self, chain=self.chain.signature())


@dataclass(frozen=True)
class Norm:
    """An RMSNorm in front of a group, which its tiles carry out: each row of ``normed``, the X of the graph, is
    ``x * rsqrt(mean(x * x) + epsilon) * weight``, and what the group reads is ``x``.

    The columns are scaled where the K loop reads them, and the rows behind it: ``(x * weight) @ W * rsqrt(...)``.
    """

    normed: Operand
    epsilon: float
    weight: Operand | None = None
    """``[K]``."""
    rounded: bool = False
    """Whether the graph rounds to the dtype of X before the weight multiplies, and then again."""


@dataclass(frozen=True)
class Group:
    """n GEMMs that share ``lhs``. ``m`` is the number of rows, or a hint for it when ``m_symbol`` is not empty."""

    name: str
    lhs: Operand
    members: tuple[Member, ...]
    branches: tuple[Branch, ...]
    outputs: tuple[Output, ...]
    m_symbol: str = ""
    """The symbolic expression of M, for example ``s0*s1``; empty when M is static."""
    fp32_precision: Literal["ieee", "tf32"] = "ieee"
    """torch's float32 matmul precision setting at capture."""
    epilogues: tuple[Epilogue, ...] = ()
    """What tiles end with; a main member is in one at most."""
    norm: Norm | None = None
    """What tiles make of ``lhs`` before they multiply it."""

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Every tensor that its kernels may read, X first, in a fixed order; a tensor with two uses is there twice."""
        given = [each for member in self.members for each in (member.weight, member.bias) if each is not None]
        scales = (scale for branch in self.branches for scale in branch.scale_tensors)
        ends = (each for epilogue in self.epilogues for each in epilogue.operands)
        columns = (self.norm.weight,) if self.norm is not None and self.norm.weight is not None else ()
        return (self.lhs, *columns, *given, *scales, *ends)

    @property
    def bare(self) -> Self:
        """The group without what its tiles begin and end with."""
        lhs = self.lhs if self.norm is None else self.norm.normed
        return replace(self, lhs=lhs, epilogues=(), norm=None)

    @property
    def m(self) -> int:
        return self.lhs.shape[0]

    @property
    def k(self) -> int:
        return self.lhs.shape[1]

    @property
    def mains(self) -> tuple[int, ...]:
        """Indices of the main members, in graph order."""
        return tuple(i for i, member in enumerate(self.members) if member.role == "main")

    @property
    def joined(self) -> tuple[int, ...]:
        """Indices of the main members with a branch, in graph order."""
        return tuple(main for main in self.mains if self.branches_of(main))

    @property
    def downs(self) -> tuple[int, ...]:
        """Indices of the down members that branches read, each once."""
        return tuple(dict.fromkeys(branch.down for branch in self.branches))

    def branches_of(self, main: int) -> tuple[Branch, ...]:
        """Branches joined to the main member with index ``main``, in graph order."""
        return tuple(branch for branch in self.branches if branch.main == main)

    def output_of(self, main: int) -> Output:
        """The output of the main member with index ``main``."""
        return next(output for output in self.outputs if output.main == main)

    def epilogue_of(self, main: int) -> Epilogue | None:
        """What the tiles of the main member with index ``main`` end with."""
        return next((each for each in self.epilogues if main in each.mains), None)

    def together(self, mains: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        """Main members by the programs that compute their tiles: those of one epilogue, or a member alone."""
        ended = ((main, self.epilogue_of(main)) for main in mains)
        return tuple(dict.fromkeys((main,) if end is None else end.mains for main, end in ended))

    def signature(self) -> "Group":
        """The group with every name removed: equal for groups that may share a kernel and a schedule."""

        def anonymous(operand: Operand | None) -> Operand | None:
            return None if operand is None else replace(operand, node="")

        norm = self.norm
        if norm is not None:
            norm = replace(norm, normed=replace(norm.normed, node=""), weight=anonymous(norm.weight))

        return replace(
            self,
            name="",
            lhs=replace(self.lhs, node=""),
            members=tuple(
                replace(member, node="", source="", weight=replace(member.weight, node=""), bias=anonymous(member.bias))
                for member in self.members
            ),
            branches=tuple(
                replace(branch, scale_tensors=tuple(replace(scale, node="") for scale in branch.scale_tensors))
                for branch in self.branches
            ),
            outputs=tuple(replace(output, node="") for output in self.outputs),
            m_symbol="M" if self.m_symbol else "",
            epilogues=tuple(each.signature() for each in self.epilogues),
            norm=norm,
        )
