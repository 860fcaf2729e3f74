"""The self-check of a chain's module: random operands, the same ops in eager and in fp64, bounds, guards, timing."""

from collections.abc import Mapping, Sequence
from math import prod

from fusioncc.chain import CASTS, CONSTANT, ROTATE_HALF, Chain, Op
from fusioncc.codegen.chain_space import Space
from fusioncc.codegen.lines import call, indented, returned

TORCH = {
    "bf16": "torch.bfloat16",
    "fp16": "torch.float16",
    "fp32": "torch.float32",
    "fp64": "torch.float64",
    "fp8e4m3": "torch.float8_e4m3fn",
    "fp8e5m2": "torch.float8_e5m2",
    **{name: f"torch.{name}" for name in ("int8", "uint8", "int16", "int32", "int64", "bool")},
}
SMALL = 1 << 14
"""Elements about which a check on a CPU has."""
TIMED_BYTES = 256 << 20
MAX_SETS = 16

ATEN = "aten = torch.ops.aten\n"
CAST = '''def cast(value, dtype):
    """``value`` in another dtype; floats of the reference, in which the default dtype is fp64, stay fp64."""
    exact = dtype.is_floating_point and torch.get_default_dtype() == torch.float64
    return value.to(torch.float64 if exact else dtype)
'''
DRAW = '''def draw(seed):
    """Random operands with the strides of the header."""
    generator = torch.Generator(DEVICE).manual_seed(seed)
    operands = []
    for shape, stride, dtype in OPERANDS:
        extent = 1 + sum((size - 1) * step for size, step in zip(shape, stride))
        values = torch.randn(extent, generator=generator, device=DEVICE)
        values = values if dtype.is_floating_point else values > 0 if dtype == torch.bool else values * 8
        operands.append(values.to(dtype).as_strided(shape, stride))
    return operands


def wide(operand):
    """An operand of the reference."""
    return operand.double() if operand.is_floating_point() else operand


def deviation(value, exact):
    """RMS and maximum of the error, relative to the RMS of the exact result; infinite where only one is a number."""
    value, exact = value.double().flatten(), exact.double().flatten()
    same = (value == exact) | (value.isnan() & exact.isnan())
    error = torch.where(same, 0.0, value - exact).nan_to_num(math.inf, math.inf, math.inf)
    size = exact[exact.isfinite()].square().mean().sqrt().nan_to_num(1.0).clamp(min=1e-30)
    return (error.square().mean().sqrt() / size).item(), (error.abs().max() / size).item()


def check(operands):
    """What is wrong with the kernel's results, or nothing."""
    buffers = []

    def guarded(shape, stride, dtype, device):
        extent = 1 + sum((size - 1) * step for size, step in zip(shape, stride))
        poison = math.nan if dtype.is_floating_point else 85 if dtype != torch.bool else True
        whole = torch.full((extent + 2 * GUARD,), poison, device=device).to(dtype)
        buffers.append((whole, whole.clone()))
        return whole[GUARD:].as_strided(shape, stride)

    results = launch(*operands, empty=guarded)
    torch.set_default_dtype(torch.float64)
    exact = eager(*map(wide, operands))
    torch.set_default_dtype(torch.float32)
    for name, result, plain, truth in zip(RESULTS, results, eager(*operands), exact):
        (rms, worst), (eager_rms, eager_worst) = deviation(result, truth), deviation(plain, truth)
        if not (rms <= RMS_LIMIT * eager_rms and worst <= MAX_LIMIT * eager_worst):
            return f"{name}: RMS error {rms:.2e}, maximum {worst:.2e}; eager has {eager_rms:.2e} and {eager_worst:.2e}"
    for whole, before in buffers:
        for edge in (slice(None, GUARD), slice(-GUARD, None)):
            if not torch.equal(whole[edge].view(torch.uint8), before[edge].view(torch.uint8)):
                return "the kernel wrote outside its buffers"
    return ""
'''
MAIN = """if __name__ == "__main__":
    if not CUDA and not INTERPRETED:
        print(f"{NAME}: not checked: the interpreter has no libdevice, or is wrong for a dtype; run it on a card")
        sys.exit(0)
    problem = check(draw(0))
    if problem:
        sys.exit(f"{NAME}: WRONG: {problem}")
    print(f"{NAME}: right for {OPERANDS[0][0]}, " + ("on the card" if CUDA else "interpreted on the CPU"))
    if CUDA:
        sets = [draw(seed) for seed in range(SETS)]  # rotated, so that operands come from memory and not from L2
        for label, run in (("eager", eager), ("launch", launch)):
            ms = triton.testing.do_bench_cudagraph(lambda: [run(*operands) for operands in sets], return_mode="median")
            print(f"{label}: {1000 * ms / SETS:.1f} us")
"""


def check_sections(chain: Chain, space: Space, name: str, tier: str, *, interpreted: bool) -> tuple[str, ...]:
    """Top-level sections of source, in order. ``interpreted``: whether Triton's interpreter runs the kernel right."""
    eager = "\n".join(_eager(chain, space)) + "\n"
    constants = "\n".join(_constants(chain, space, name, tier, interpreted)) + "\n"
    casts = (CAST,) if "cast(" in eager else ()
    return (ATEN if "aten." in eager else "", *casts, eager, constants, DRAW, MAIN)


def _eager(chain: Chain, space: Space) -> tuple[str, ...]:
    """The ops one by one, by ATen."""
    inputs = numbered("x", len(chain.inputs))
    body = ['"""The same ops, one after another; from fp64 operands they are the reference."""']
    names = [*inputs]
    for at, op in enumerate(chain.ops):
        names.append(f"v{at}")
        body += _eager_op(op, names, _shape(op.shape, chain, space))
    body.append(returned([names[result.value] for result in chain.results]))
    return (*call("def eager", inputs, ":", depth=0), *indented(body))


def eager_ops(
    chain: Chain, given: Sequence[str], made: Sequence[str], stem: str, dtypes: Mapping[str, str]
) -> tuple[str, ...]:
    """The ops of an epilogue one by one, by ATen, on inputs that are called ``given``; what it ``made`` is named last.
    Other values begin with ``stem``, ``dtypes`` is source."""
    names, lines = list(given), list[str]()
    for at, op in enumerate(chain.ops):
        names.append(f"{stem}{at}")
        lines += _eager_op(op, names, "(1, 1)", dtypes)
    results = (names[result.value] for result in chain.results)
    return (*lines, *(f"{name} = {value}" for name, value in zip(made, results, strict=True)))


def _eager_op(op: Op, names: list[str], shape: str, dtypes: Mapping[str, str] = TORCH) -> tuple[str, ...]:
    made = names[-1]
    if op.target in CASTS:
        return (f"{made} = cast({names[op.args[0].value or 0]}, {dtypes[op.dtype]})",)
    if op.target == ROTATE_HALF:
        return (f"{made} = rotated({names[op.values[0]]}, {op.head})",)
    if op.target == CONSTANT:
        dtype = dtypes[op.dtype]
        whole = f"torch.full({shape}, {op.args[0].constant}, dtype={dtype}, device={names[0]}.device)"
        return call(f"{made} = cast", [whole, dtype])
    given = []
    for arg in op.args:
        source = arg.constant if arg.value is None else names[arg.value]
        if not (arg.keyword and source == "None"):
            given.append(f"{arg.keyword}={source}" if arg.keyword else source)
    return call(f"{made} = {op.target}", given)


def _constants(chain: Chain, space: Space, name: str, tier: str, interpreted: bool) -> list[str]:
    dtypes = {*chain.dtypes}
    rms, worst = (1.1, 3.0) if dtypes & {"bf16", "fp16", "fp8e4m3", "fp8e5m2"} else (2.0, 4.0)
    size = chain.shape[space.outer] if chain.shape else 1
    count = prod(chain.shape)
    held = any(_is_outer(each.shape, chain, space) for each in chain.inputs)
    fixed = not held or (chain.by_rows and len(space.sizes) == 1)
    small = size if fixed else max(1, min(size, SMALL * size // max(count, 1)))
    lines = [
        f'NAME = "{name}"',
        "CUDA = torch.cuda.is_available()",
        'DEVICE = "cuda" if CUDA else "cpu"',
        f"INTERPRETED = {interpreted and not dtypes & {'bf16', 'fp8e4m3', 'fp8e5m2'}}",
        f"OUTER = {size} if CUDA else {small}" + "  # the interpreter is slow" * (small != size),
        "OPERANDS = (  # shape, strides, dtype",
    ]
    for operand in chain.inputs:
        lines.append(f"    ({_shape(operand.shape, chain, space)}, {operand.strides}, {TORCH[operand.dtype]}),")
    quoted = [f'"{each}"' for each in numbered("out", len(chain.results))]
    moved = sum(operand.bytes for operand in chain.inputs)
    lines += [
        ")",
        f"RESULTS = ({', '.join(quoted)}{',' * (len(quoted) == 1)})",
        f"RMS_LIMIT, MAX_LIMIT = {rms}, {worst}  # of eager's own error",
        "GUARD = 4096  # elements around each buffer",
        f"SETS = {max(1, min(MAX_SETS, -(-TIMED_BYTES // max(1, moved))))}",
    ]
    return lines


def _is_outer(shape: tuple[int, ...], chain: Chain, space: Space) -> bool:
    """Whether a tensor has all of the outermost dimension, of which a check on a CPU takes a part."""
    at = space.outer - (len(chain.shape) - len(shape))
    return 0 <= at < len(shape) and shape[at] == chain.shape[space.outer]


def _shape(shape: tuple[int, ...], chain: Chain, space: Space) -> str:
    """A shape as source, in which the outermost dimension is ``OUTER``."""
    at = space.outer - (len(chain.shape) - len(shape))
    outer = _is_outer(shape, chain, space)
    sizes = ["OUTER" if dim == at and outer and size > 1 else str(size) for dim, size in enumerate(shape)]
    return f"({', '.join(sizes)}{',' * (len(sizes) == 1)})"


def numbered(stem: str, count: int) -> tuple[str, ...]:
    """Names of so many tensors; a single one needs no number."""
    return (stem,) if count == 1 else tuple(f"{stem}{at}" for at in range(count))
