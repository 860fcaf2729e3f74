"""What the parts of a module's kernels share: the group, the tier, and the names of the tensors in ``launch()``."""

from dataclasses import dataclass

from fusioncc.codegen.kernel import Param, constant, pointer
from fusioncc.codegen.launch import Buffer, M
from fusioncc.codegen.tile import Axis, Tile
from fusioncc.group import Branch, Epilogue, Group, Member, Operand
from fusioncc.packing import concat_columns
from fusioncc.schedule import Schedule, padded_rank


@dataclass(frozen=True)
class Context:
    """The group, its rounding tier, the main members that are emitted (indices, in graph order), and whether persistent
    kernels record their tiles."""

    group: Group
    tier: str
    mains: tuple[int, ...]
    trace: bool = False
    concat: bool = False
    """What is emitted is ``[X | s X A]``, an operand of the main products: it reads neither their weights nor B."""

    @property
    def branches(self) -> tuple[Branch, ...]:
        """The branches of the emitted main members."""
        return tuple(branch for main in self.mains for branch in self.group.branches_of(main))

    @property
    def downs(self) -> tuple[int, ...]:
        """Indices of the down members, each once."""
        return tuple(dict.fromkeys(branch.down for branch in self.branches))

    @property
    def epilogues(self) -> tuple[Epilogue, ...]:
        """What tiles of the emitted main members end with."""
        return tuple(each for each in self.group.epilogues if set(each.mains) <= set(self.mains))

    @property
    def left(self) -> str:
        """What the products multiply, in words and in eager."""
        return "x" if self.group.norm is None else "xn"

    def is_stored(self, main: int) -> bool:
        """Whether the output of a main member is written as it is."""
        epilogue = self.group.epilogue_of(main)
        return epilogue is None or main in epilogue.kept

    def results(self, epilogue: Epilogue) -> tuple[Buffer, ...]:
        """What the epilogue makes."""
        every = tuple((each, at) for each in self.epilogues for at in range(len(each.chain.results)))
        n, chain = self.member(epilogue.mains[0]).n, epilogue.chain
        return tuple(
            Buffer(
                f"h{self.tail((epilogue, at), every)}",
                (M, n),
                chain.dtype_of(result.value),
                "result",
                epilogue.mains[0],
                at,
            )
            for at, result in enumerate(chain.results)
        )

    def made(self, main: int) -> tuple[Buffer, ...]:
        """What the tiles of a main member write; of an epilogue of several the first answers for its results."""
        epilogue = self.group.epilogue_of(main)
        ends = self.results(epilogue) if epilogue is not None and main == epilogue.mains[0] else ()
        return (*([self.output(main)] if self.is_stored(main) else []), *ends)

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        """What the emitted main members write, in order; or the operand of a vendor GEMM."""
        return (self.operand(),) if self.concat else tuple(each for main in self.mains for each in self.made(main))

    def first_branch(self, down: int) -> Branch:
        """The branch that answers for a down member, which several branches may read."""
        return next(branch for branch in self.branches if branch.down == down)

    def member(self, index: int) -> Member:
        """The member with this index."""
        return self.group.members[index]

    def names(self) -> dict[Operand, str]:
        """The tensors that ``launch()`` takes, in order and without repetition, with their names."""
        names: dict[Operand, str] = {}

        def add(operand: Operand | None, name: str) -> None:
            if operand is not None:
                names.setdefault(operand, name)

        add(self.group.lhs, "x")
        add(None if self.group.norm is None else self.group.norm.weight, "g")
        for main in self.mains:
            member, tail = self.member(main), self.tail(main, self.mains)
            if not self.concat:
                add(member.weight, f"w{tail}")
                add(member.bias, f"bias{tail}")
            for branch in self.group.branches_of(main):
                tail = self.branch_tail(branch)
                add(self.member(branch.down).weight, f"a{tail}")
                add(self.member(branch.down).bias, f"a_bias{tail}")
                if not self.concat:
                    add(self.member(branch.up).weight, f"b{tail}")
                    add(self.member(branch.up).bias, f"b_bias{tail}")
                for scale in branch.scale_tensors:
                    add(scale, f"scale{tail}{self.tail(scale, branch.scale_tensors)}")
        ends = tuple(dict.fromkeys(each for epilogue in self.epilogues for each in epilogue.operands))
        for operand in ends:
            add(operand, f"z{self.tail(operand, ends)}")
        return names

    def expression(self, operand: Operand) -> str:
        """The name of an operand in ``launch()``."""
        return self.names()[operand]

    def pointer(self, name: str, operand: Operand) -> Param:
        """A kernel's pointer to an operand."""
        return pointer(name, operand, self.expression(operand))

    def tile(
        self, name: str, operand: Operand, axes: tuple[Axis, Axis], swap: bool, bounds: tuple[Param, ...] = ()
    ) -> Tile:
        """The tile ``name`` of a two-dimensional operand, read through its own pointer with its own strides."""
        names = [f"{name.upper()}_STRIDE_{axis.letter}" for axis in axes]
        expression = self.expression(operand)
        strides = [
            constant(stride, operand.strides[dim], f"{expression}.stride({dim})") for dim, stride in enumerate(names)
        ]
        params = (self.pointer(f"{name}_ptr", operand), *strides, *bounds)
        return Tile(name, f"{name}_ptr", axes, (names[0], names[1]), params, swap)

    def output(self, main: int) -> Buffer:
        """The output of a main member."""
        name = f"out{self.tail(main, self.mains)}"
        return Buffer(name, (M, self.member(main).n), self.group.output_of(main).dtype, "output", main)

    def operand(self) -> Buffer:
        """``[X | s X A]``."""
        return Buffer("xy", (M, concat_columns(self.group)), self.group.lhs.dtype, "operand", self.mains[0])

    def saved(self, down: int) -> Buffer | None:
        """The buffer of a down product that the rest of the graph reads, when it does."""
        if not any(branch.saved and branch.down == down for branch in self.branches):
            return None
        member = self.member(down)
        return Buffer(f"saved{self.down_tail(down)}", (M, member.n), member.dtype, "saved", down)

    def counters(self) -> Buffer:
        """What the workers of a persistent kernel count together: three numbers, and one for each block of rows."""
        return Buffer("counters", (4, M), "int32", "counters", self.mains[0])

    def product(self, main: int, k_split: int) -> Buffer:
        """``X @ W`` in fp32, one slice of K after another, for a later launch to add up."""
        shape = (k_split, M, self.member(main).n)
        return Buffer(f"product{self.tail(main, self.mains)}", shape, "fp32", "scratch", main)

    def slices(self, down: int, k_split: int) -> Buffer:
        """fp32 partial sums of a down product, one slice after another."""
        shape = (k_split, M, padded_rank(self.member(down).n))
        return Buffer(f"y{self.down_tail(down)}", shape, "fp32", "scratch", down)

    def branch_tail(self, branch: Branch) -> str:
        """Suffix of a branch's names: that of its main member, unless one has several branches."""
        joined_to = [each.main for each in self.branches]
        several = len({*joined_to}) < len(joined_to)
        return self.tail(branch, self.branches) if several else self.tail(branch.main, self.mains)

    def down_tail(self, down: int) -> str:
        """Suffix of the names of a down product."""
        return self.branch_tail(self.first_branch(down))

    @staticmethod
    def tail(item: object, items: tuple[object, ...]) -> str:
        """Suffix of the name of one of several items; empty for a single one."""
        return f"_{items.index(item)}" if len(items) > 1 else ""


def mains_of(schedule: Schedule, group: Group) -> tuple[int, ...]:
    """The main members that the schedule runs, in graph order: all of them in ``streams`` and ``k_concat``,
    whose vendor GEMMs have no pool."""
    if schedule.kind in ("streams", "k_concat"):
        return group.mains
    listed = {main for pool in schedule.pools if pool.role == "main" for main in pool.members}
    return tuple(main for main in group.mains if main in listed)
