"""The self-check of an emitted module: random operands, the same sums in eager and in fp64, bounds, guards, timing."""

import math
from dataclasses import dataclass

from fusioncc.codegen.chain_check import ATEN, CAST, TORCH, eager_ops
from fusioncc.codegen.context import Context
from fusioncc.codegen.lines import call, indented, returned
from fusioncc.codegen.rotary import EAGER as ROTATED
from fusioncc.codegen.trace import SCRIPT
from fusioncc.group import Branch, Epilogue, Operand
from fusioncc.packing import concat_width
from fusioncc.schedule import Schedule

TIMED_BYTES = 256 << 20
"""Operands rotated in the timing loop: more than any L2."""
MAX_SETS = 16
VENDOR_BLOCK = 64
"""Elements that stand for the sides of a tile where a vendor GEMM has its own."""

CHECK = '''def draw(seed):
    """Random operands; M, K and N may be smaller than in the group, the strides are the group's own."""
    generator = torch.Generator(DEVICE).manual_seed(seed)
    operands = []
    for shape, stride, dtype, spread, mean in OPERANDS:
        extent = 1 + sum((size - 1) * step for size, step in zip(shape, stride))
        values = torch.randn(extent, generator=generator, device=DEVICE) * spread + mean
        values = values > 0 if dtype == torch.bool else values.to(dtype)
        operands.append(values.as_strided(shape, stride))
    return operands


def deviation(value, exact):
    """RMS and maximum of the error, relative to the RMS of the exact result."""
    exact = exact.double()
    error, size = value.double() - exact, exact.square().mean().sqrt()
    return (error.square().mean().sqrt() / size).item(), (error.abs().max() / size).item()


def check(operands):
    """What is wrong with the kernels' results, or nothing."""
    buffers = []

    def guarded(shape, dtype, device):
        dtype = HALF if dtype == torch.bfloat16 else dtype
        poison = math.nan if dtype.is_floating_point else 85
        buffers.append(torch.full((math.prod(shape) + 2 * GUARD,), poison, device=device).to(dtype))
        return buffers[-1][GUARD:-GUARD].view(shape)

    results = launch(*operands, empty=guarded)
    torch.set_default_dtype(torch.float64)
    exact = eager(*(operand.double() if operand.is_floating_point() else operand for operand in operands))
    torch.set_default_dtype(torch.float32)
    for name, result, plain, truth in zip(RESULTS, results, eager(*operands), exact):
        (rms, worst), (eager_rms, eager_worst) = deviation(result, truth), deviation(plain.to(result.dtype), truth)
        if not (rms <= RMS_LIMIT * eager_rms and worst <= MAX_LIMIT * eager_worst):
            return f"{name}: RMS error {rms:.2e}, maximum {worst:.2e}; eager has {eager_rms:.2e} and {eager_worst:.2e}"
    for edge in (edge.float() for buffer in buffers for edge in (buffer[:GUARD], buffer[-GUARD:])):
        if not (edge.isnan() | (edge == 85)).all():
            return "a kernel wrote outside its buffers"
    return ""
'''

REPEATED = '''def repeated(value, whole):
    """A matrix as often as it fits into the shape of ``whole``."""
    return value.repeat(*(size // own for size, own in zip(whole.shape, value.shape)))
'''

TF32 = '''def tf32(value):
    """fp32 as the tensor cores take it, rounded to 10 bits after the point; fp64 as it is."""
    if value.dtype != torch.float32:
        return value
    return ((value.view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)
'''

NEEDS_A_CARD = """if __name__ == "__main__" and not CUDA:
    print(f"{NAME}: not checked: on a CPU a function or a dtype of it is not what it is on a card; run it there")
    sys.exit(0)
"""
MAIN = """if __name__ == "__main__":
    problem = check(draw(0))
    if problem:
        sys.exit(f"{NAME}: WRONG: {problem}")
    print(f"{NAME}: right for {SIZES}, " + ("on the card" if CUDA else "interpreted on the CPU with fp16 for bf16"))
    if CUDA:
        sets = [draw(seed) for seed in range(SETS)]  # rotated, so that weights come from memory and not from L2
        for label, run in (("eager", eager), ("launch", launch)):
            ms = triton.testing.do_bench_cudagraph(lambda: [run(*operands) for operands in sets], return_mode="median")
            print(f"{label}: {1000 * ms / SETS:.1f} us")
"""


@dataclass(frozen=True)
class SelfCheck:
    """The part of a module that runs as a script."""

    context: Context
    schedule: Schedule
    name: str
    traced: bool = False
    """Whether the script writes a trace when it is asked to."""
    needs_a_card: bool = False
    """Whether Triton's interpreter does not run the kernels."""

    def sections(self) -> tuple[str, ...]:
        """Top-level sections of source, in order."""
        eager = self._eager()
        called = (("tf32(", TF32), ("aten.", ATEN), ("cast(", CAST), ("rotated(", ROTATED), ("repeated(", REPEATED))
        helpers = [source for mark, source in called if any(mark in line for line in eager)]
        main = NEEDS_A_CARD * self.needs_a_card + MAIN + SCRIPT * self.traced
        return (*helpers, "\n".join(eager) + "\n", "\n".join(self._constants()) + "\n", CHECK, main)

    def _eager(self) -> tuple[str, ...]:
        return self._concat_eager() if self.context.concat else self._main_eager()

    def _concat_eager(self) -> tuple[str, ...]:
        names, group = self.context.names(), self.context.group
        columns = ["x"]
        for branch in self.context.branches:
            down = self.context.member(branch.down)
            factors = [*_factor(branch.scale), *(names[scale] for scale in branch.scale_tensors)]
            y = " * ".join([*factors, f"({self._product('x', down.weight, group.lhs.dtype)})"])
            if down.bias is not None:
                y += " + " + " * ".join([*_factor(down.bias_scale), names[down.bias]])
            columns.append(y)
            free = concat_width(group, branch) - down.n
            columns += [f"x.new_zeros(x.shape[0], {free})"] if free else []
        body = ['"""The same columns, one operation after another; from fp64 operands they are the reference."""']
        body += [*call("xy = torch.cat", [f"({', '.join(columns)})", "dim=1"]), returned(["xy"])]
        return (*call("def eager", list(names.values()), ":", depth=0), *indented(body))

    def _main_eager(self) -> tuple[str, ...]:
        names = self.context.names()
        body = ['"""The same sums, one operation after another; from fp64 operands it is the reference."""']
        left, lhs = self.context.left, self.context.group.lhs.dtype
        body += self._normed()
        products: dict[int, str] = {}
        for main in self.context.mains:
            member, output = self.context.member(main), self.context.output(main)
            value = self._product(left, member.weight, lhs)
            terms = [value if member.bias is None else f"{value} + {names[member.bias]}"]
            for branch in self.context.group.branches_of(main):
                down = self.context.member(branch.down).weight
                if branch.down not in products:
                    products[branch.down] = self._y(branch)
                    body.append(f"{products[branch.down]} = {self._product(left, down, lhs)}")
                terms.append(self._up(branch, products[branch.down]))
            body.append(f"{output.name} = {' + '.join(terms)}")
        for epilogue in self.context.epilogues:
            body += self._ended(epilogue)
        results = [made.name for made in self.context.outputs]
        results += [
            self._saved(down, products[down]) for down in self.context.downs if self.context.saved(down) is not None
        ]
        body.append(returned(results))
        return (*call("def eager", list(names.values()), ":", depth=0), *indented(body))

    def _normed(self) -> list[str]:
        """The norm, rounded as the graph does."""
        norm = self.context.group.norm
        if norm is None:
            return []
        scaled = f"wide * torch.rsqrt(wide.square().mean(1, keepdim=True) + {norm.epsilon!r})"
        scaled = f"({scaled}).to(x.dtype)" if norm.rounded else scaled
        return [
            "wide = x.to(torch.promote_types(x.dtype, torch.float32))",
            f"xn = ({scaled}{' * g' * (norm.weight is not None)}).to(x.dtype)",
        ]

    def _ended(self, epilogue: Epilogue) -> tuple[str, ...]:
        """The ops of an epilogue, one after another."""
        given = [self.context.output(main).name for main in epilogue.mains]
        given += [self._whole(epilogue, operand) for operand in epilogue.operands]
        made = [buffer.name for buffer in self.context.results(epilogue)]
        number = self.context.group.epilogues.index(epilogue)
        return eager_ops(epilogue.chain, given, made, f"v{number}_", {**TORCH, "bf16": "HALF"})

    def _whole(self, epilogue: Epilogue, operand: Operand) -> str:
        """An operand of an epilogue in a shape that torch broadcasts."""
        name, sides = self.context.names()[operand], zip(operand.shape, epilogue.chain.shape, strict=False)
        repeats = any(1 < size < whole for size, whole in sides)
        return f"repeated({name}, {self.context.output(epilogue.mains[0]).name})" if repeats else name

    def _y(self, branch: Branch) -> str:
        return f"y{self.context.down_tail(branch.down)}"

    def _product(self, left: str, weight: Operand, dtype: str) -> str:
        name = self.context.names()[weight]
        if dtype == weight.dtype == "fp32" and self.context.group.fp32_precision == "tf32":
            return f"tf32({left}) @ tf32({name})"
        if dtype == weight.dtype:
            return f"{left} @ {name}"
        wide = weight.dtype == "fp32" and self.context.tier != "relaxed"
        return f"{left}.to({name}.dtype) @ {name}" if wide else f"{left} @ {name}.to({left}.dtype)"

    def _up(self, branch: Branch, y: str) -> str:
        names, up, down = self.context.names(), self.context.member(branch.up), self.context.member(branch.down)
        lhs = self.context.group.lhs.dtype
        dtype = lhs if self.context.tier == "relaxed" or lhs == "fp32" else down.weight.dtype
        factors = [*_factor(branch.scale), *(names[scale] for scale in branch.scale_tensors)]
        terms = [" * ".join([*factors, f"({self._product(y, up.weight, dtype)})"])]
        if down.bias is not None:
            product = self._product(names[down.bias], up.weight, down.bias.dtype)
            terms.append(" * ".join([*_factor(down.bias_scale), f"({product})"]))
        if up.bias is not None:
            terms.append(" * ".join([*_factor(up.bias_scale), names[up.bias]]))
        return " + ".join(terms)

    def _saved(self, down: int, y: str) -> str:
        bias = self.context.member(down).bias
        return y if bias is None else f"{y} + {self.context.names()[bias]}"

    def _constants(self) -> tuple[str, ...]:
        group = self.context.group
        full, small = self._sizes()
        sizes = ", ".join(full)
        lines = [
            f'NAME = "{self.name}"',
            "CUDA = torch.cuda.is_available()",
            'DEVICE = "cuda" if CUDA else "cpu"',
            "HALF = torch.bfloat16 if CUDA else torch.float16  # the interpreter's bf16 dot is wrong",
        ]
        lines += [f"{sizes} = {', '.join(map(str, full.values()))}"]
        if small != full:
            lines += ["if not CUDA:  # the interpreter is slow: a few tiles and the same tails"]
            lines += indented([f"{sizes} = {', '.join(map(str, small.values()))}"])
        dtypes = {**TORCH, "bf16": "HALF"}
        lines.append("OPERANDS = (  # shape, strides, dtype, standard deviation, mean")
        drawn = self._shapes()
        for operand, name in self.context.names().items():
            shape, spread, mean = drawn[operand]
            lines.append(f"    ({shape}, {operand.strides}, {dtypes[operand.dtype]}, {spread:.4g}, {mean}),  # {name}")
        names = [made.name for made in self.context.outputs]
        names += [saved.name for down in self.context.downs if (saved := self.context.saved(down)) is not None]
        quoted = [f'"{name}"' for name in names]
        rms, worst = (1.1, 3.0) if group.lhs.dtype != "fp32" else (2.0, 4.0)
        size = sum(operand.bytes for operand in self.context.names())
        lines += [
            ")",
            f"RESULTS = ({', '.join(quoted)}{',' if len(names) == 1 else ''})",
            f"RMS_LIMIT, MAX_LIMIT = {rms}, {worst}  # of eager's own error",
            "GUARD = 4096  # elements around each buffer",
            f'SIZES = f"{", ".join(f"{size}={{{size}}}" for size in full)}"',
            f"SETS = {max(1, min(MAX_SETS, -(-TIMED_BYTES // size)))}",
        ]
        return tuple(lines)

    def _sizes(self) -> tuple[dict[str, int], dict[str, int]]:
        """M, K and each N: the group's, and cut to a few tiles with the same tails."""
        group, pools = self.context.group, self.schedule.pools
        steps = math.lcm(*(pool.tile.block_k * pool.k_split for pool in pools)) if pools else VENDOR_BLOCK
        most = max((pool.tile.block_m for pool in pools), default=VENDOR_BLOCK)
        blocks = {main: pool.tile.block_n for pool in pools if pool.role == "main" for main in pool.members}
        ups = {main: pool.tile.block_n for pool in pools if pool.role == "up" for main in pool.members}
        blocks |= {main: ups.get(main, VENDOR_BLOCK) for main in self.context.mains if main not in blocks}
        blocks = {} if self.context.concat else blocks
        full = {"M": group.m, "K": group.k}
        small = {"M": self._rows(2 * most + 3), "K": min(group.k, 2 * steps + group.k % steps)}
        for main, block in blocks.items():
            n = self.context.member(main).n
            full[self._n(main)], small[self._n(main)] = n, self._columns(main, 2 * block + n % block)
        return full, small

    def _columns(self, main: int, least: int) -> int:
        """So many columns or more, in whole heads and in whole repetitions of what the epilogue repeats."""
        n, epilogue = self.context.member(main).n, self.context.group.epilogue_of(main)
        if epilogue is None:
            return min(n, least)
        widths = (each.shape[1] for each in epilogue.operands if each.shape and each.shape[1] < n)
        whole = math.lcm(epilogue.head, *widths)
        return min(n, -(-least // whole) * whole)

    def _rows(self, least: int) -> int:
        """So many rows or more, which what an epilogue repeats divides as it divides M."""
        m, ends = self.context.group.m, (each for epilogue in self.context.epilogues for each in epilogue.operands)
        times = math.lcm(1, *(m // each.shape[0] for each in ends if each.shape and each.shape[0] > 1))
        return min(m, -(-least // times) * times)

    def _n(self, main: int) -> str:
        return f"N{Context.tail(main, self.context.mains)}"

    def _shapes(self) -> dict[Operand, tuple[str, float, float]]:
        """Shape in the module's own sizes, standard deviation and mean of each operand: every term counts as much."""
        group = self.context.group
        drawn: dict[Operand, tuple[str, float, float]] = {group.lhs: ("(M, K)", 1.0, 0.0)}
        if group.norm is not None and group.norm.weight is not None:
            drawn[group.norm.weight] = ("(K,)", 0.2, 1.0)
        for main in self.context.mains:
            member, n = self.context.member(main), self._n(main)
            drawn.setdefault(member.weight, (f"(K, {n})", group.k**-0.5, 0.0))
            if member.bias is not None:
                drawn.setdefault(member.bias, (f"({n},)", 1.0, 0.0))
            for branch in group.branches_of(main):
                down, up = self.context.member(branch.down), self.context.member(branch.up)
                scale = abs(branch.scale) or 1.0
                drawn.setdefault(down.weight, (f"(K, {down.n})", group.k**-0.5, 0.0))
                drawn.setdefault(up.weight, (f"({down.n}, {n})", min(100.0, down.n**-0.5 / scale), 0.0))
                if down.bias is not None:
                    drawn.setdefault(down.bias, (f"({down.n},)", scale / (abs(down.bias_scale) or 1.0), 0.0))
                if up.bias is not None:
                    drawn.setdefault(up.bias, (f"({n},)", 1.0 / (abs(up.bias_scale) or 1.0), 0.0))
                for tensor in branch.scale_tensors:
                    drawn.setdefault(tensor, ("()", 0.2, 1.0))
        for epilogue in self.context.epilogues:
            n = self._n(epilogue.mains[0])
            for operand in epilogue.operands:
                drawn.setdefault(operand, (_drawn(operand, epilogue.chain.shape, n), 1.0, 0.0))
        return drawn


def _factor(scale: float) -> list[str]:
    return [] if scale == 1.0 else [repr(scale)]


def _drawn(operand: Operand, whole: tuple[int, ...], n: str) -> str:
    """The shape of an operand of an epilogue over ``whole``, in the module's own sizes."""
    if not operand.shape:
        return "()"
    (rows, columns), (m, width) = operand.shape, whole
    first = "M" if rows == m > 1 else f"M // {m // rows}" if rows > 1 else "1"
    return f"({first}, {n if columns == width > 1 else columns})"
