"""``streams``: as close as eager, in the right order on every stream, and refused where the vendor has no such GEMM."""

import re
from dataclasses import replace

import pytest
import torch

from fusioncc.codegen import EmittedModule, emit
from fusioncc.errors import EmissionError
from fusioncc.group import Group, Output
from fusioncc.schedule import COMPENSATED_STEP, Pool, Schedule, TileConfig, padded_rank
from tests.codegen import reference
from tests.codegen.cases import DOWN, TILE, Lora, Main, group, split, streams
from tests.codegen.fake_streams import Card
from tests.codegen.test_numerics import BUNDLES, GROUPS, PLAIN, run

BARE = group(33, 200, Main(136, (), bias=True), Main(64, ()), Main(72, ()))
ADAPTED = BUNDLES["one_without_a_branch"]
GOOD = {
    name: value for name, value in {**GROUPS, **BUNDLES, "bare": BARE, "plain": PLAIN}.items() if name != "fp32_weight"
}


def schedule(value: Group, k_split: int = 3) -> Schedule:
    rank = max((padded_rank(value.members[branch.down].n) for branch in value.branches), default=16)
    down = replace(DOWN, block_n=rank, block_k=COMPENSATED_STEP if value.lhs.dtype == "fp32" else DOWN.block_k)
    return streams(value, down, 1 if any(branch.saved for branch in value.branches) else k_split)


def emitted(value: Group) -> EmittedModule:
    return emit(value, schedule(value), name="module", tier="fp32", why="a test")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", GOOD)
def test_as_close_as_eager(load, name: str) -> None:
    value = GOOD[name]
    outputs, eager, exact = run(load, value, schedule(value))
    assert len(outputs) == len(exact)
    slack = 2.0 if value.lhs.dtype == "fp32" and value.fp32_precision == "ieee" else 1.1
    for output, plain, truth in zip(outputs, eager, exact, strict=True):
        assert output.shape == truth.shape
        assert output.dtype == reference.DTYPES[value.outputs[0].dtype]
        assert reference.rms(output, truth) <= slack * reference.rms(plain.to(output.dtype), truth)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_the_tier_is_fp32(load, dtype: str) -> None:
    """With an fp32 output nothing rounds to 16 bits, the vendor's product neither; nor does a plain member's."""
    value = group(33, 200, Main(136, (Lora(8, dtype="fp32"),), dtype=dtype), Main(64, (), dtype=dtype), dtype=dtype)
    value = replace(value, outputs=tuple(replace(output, dtype="fp32") for output in value.outputs))
    outputs, _, exact = run(load, value, schedule(value))
    for output, truth in zip(outputs, exact, strict=True):
        assert reference.rms(output, truth) < 1e-6


@pytest.mark.parametrize("rows", [1, 70])
@pytest.mark.parametrize("value", [ADAPTED, BARE], ids=["adapted", "bare"])
def test_rows_of_a_symbol_differ_from_the_hint(load, value: Group, rows: int) -> None:
    value = replace(value, m_symbol="s0")
    made = emitted(value)
    module, tensors = load(made), reference.draw(made, value)
    tensors[value.lhs] = torch.randn(rows, 200, generator=torch.Generator().manual_seed(1)).bfloat16()
    operands = [tensors[operand] for operand in made.operands]
    found = zip(module.launch(*operands), module.eager(*operands), reference.results(value, tensors), strict=True)
    for output, plain, truth in found:
        assert reference.rms(output, truth) <= 1.1 * reference.rms(plain, truth)


def test_weights_that_require_gradients(load) -> None:
    made = emitted(ADAPTED)
    operands = [tensor.requires_grad_() for tensor in reference.draw(made, ADAPTED).values()]
    assert not any(output.requires_grad for output in load(made).launch(*operands))


ON_A_CARD = {
    "lora": group(33, 200, Main(136)),
    "adapted": ADAPTED,
    "bare": BARE,
    "saved": BUNDLES["saved"],
    "two branches": BUNDLES["unequal_ranks"],
}


@pytest.mark.parametrize("capturing", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("name", ON_A_CARD)
def test_every_stream_waits_and_every_tensor_is_recorded(load, name: str, capturing: bool, monkeypatch) -> None:
    made, card = emitted(ON_A_CARD[name]), Card(monkeypatch, capturing)
    module = load(made)
    assert card.run(made, module) == []
    mains, kernels = len(ON_A_CARD[name].mains), len(made.launches)
    assert len(card.launched) == mains + kernels
    at_home = [what for what, stream in card.launched if stream is card.home]
    assert len(at_home) == (2 if kernels else 1)  # the first main, and what joins the branches
    assert len(card.sides) == len(card.launched) - len(at_home)
    assert card.run(made, module) == []
    assert len(card.sides) == len(card.launched) - len(at_home), "streams are made once"


BROKEN = {
    "no wait at the fork": (r"side\.wait_event\(fork\)", "pass", "does not wait for what the current stream had"),
    "no join": (r"current\.wait_event\(.*\)", "pass", "does not wait for down_0"),
    "no record": (r"tensor\.record_stream\(side\)", "pass", "^down_0: buffer 1 is not recorded$"),
    "a tensor forgotten": (r"(on\(sides\[0\], x, a), y\)", r"\1)", "^down_0: buffer 1 is not recorded$"),
    "up before the join": (
        r"(?s)(        multiply\(.*?\n)(    up_0.*?\n    \)\n)",
        None,
        "up_0 does not wait for down_0",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_wrong_order_is_seen(load, name: str, monkeypatch) -> None:
    pattern, put, problem = BROKEN[name]
    made = emitted(ON_A_CARD["lora"])
    change = put if put is not None else lambda found: found[1] + re.sub("(?m)^", "    ", found[2])
    source, count = re.subn(pattern, change, made.source)
    assert count == 1
    broken = replace(made, source=source)
    problems = Card(monkeypatch).run(broken, load(broken))
    assert any(re.search(problem, each) for each in problems), problems


@pytest.mark.parametrize("at", range(5))
def test_a_failed_launch_leaves_no_stream_behind(load, at: int, monkeypatch) -> None:
    """What was launched before is waited for, so that its buffers may be freed."""
    made, card = emitted(ADAPTED), Card(monkeypatch)
    card.fails_at = at
    with pytest.raises(RuntimeError, match="fails"):
        card.run(made, load(made))
    assert card.problems == [] and len(card.launched) == at and card.current is card.home


def capped(value: Schedule, down: int | None = None, vendor: int | None = None, up: int | None = None) -> Schedule:
    workers = {"down": down, "up": up}
    pools = tuple(replace(pool, workers=workers[pool.role]) for pool in value.pools)
    return replace(value, pools=pools, vendor_multiprocessors=vendor)


@pytest.mark.exhaustive
@pytest.mark.parametrize("caps", [{"down": 1}, {"down": 2, "vendor": 96}, {"vendor": 96}], ids=str)
@pytest.mark.parametrize("name", ON_A_CARD)
def test_a_cap_changes_no_bit(load, name: str, caps: dict[str, int]) -> None:
    value = ON_A_CARD[name]
    found = [run(load, value, each)[0] for each in (schedule(value), capped(schedule(value), **caps))]
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_capped_kernel_is_a_small_grid() -> None:
    value = group(133, 200, Main(136))
    made = emit(value, capped(schedule(value), down=4), name="module", tier="fp32", why="a test", trace=True)
    down, up = made.launches
    assert (down.programs(133), up.workers, made.traced) == (4, None, True)
    assert [launch.programs(3) for launch in emitted(value).launches] == [3, up.programs(3)]


@pytest.mark.parametrize("capturing", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("name", ON_A_CARD)
def test_the_vendor_has_streams_of_a_partition(load, name: str, capturing: bool, monkeypatch) -> None:
    value, partitions = ON_A_CARD[name], []
    made = emit(value, capped(schedule(value), vendor=96), name="module", tier="fp32", why="a test")
    module, card = load(made), Card(monkeypatch, capturing)

    class GreenContext:
        def __init__(self, num_sms: int, device_id: int) -> None:
            self.size, self.streams = (num_sms, device_id), []
            partitions.append(self)

        create = classmethod(lambda cls, **options: cls(**options))

        def Stream(self):
            self.streams.append(torch.cuda.Stream(torch.device("cuda", 0)))
            return self.streams[-1]

    module.GreenContext = GreenContext
    for _ in range(2):
        assert card.run(made, module) == []
    (partition,) = partitions
    assert partition.size == (96, 0)
    assert len(partition.streams) == len(value.mains), "streams are made once"
    for what, stream in card.launched:
        assert (stream in partition.streams) == what.startswith("multiply")
    at_home = [what for what, stream in card.launched[len(card.launched) // 2 :] if stream is card.home]
    assert at_home == [launch.kernel for launch in made.launches[1:]]


UP = TileConfig(16, 64, 16, 4, 2)
LORA = ON_A_CARD["lora"]
REFUSED: dict[str, tuple[Group, Schedule, str]] = {
    "dtypes": (GROUPS["fp32_weight"], streams(LORA, DOWN), r"X is bf16, a weight \[200, 136\] is fp32"),
    "rounding": (replace(BARE, outputs=(*BARE.outputs[:2], Output(2, "add2", "fp16"))), Schedule("streams"), "to fp16"),
    "bias": (
        replace(BARE, outputs=(Output(0, "add0", "fp32"), *BARE.outputs[1:])),
        Schedule("streams"),
        "adds a bias where bias and output are bf16",
    ),
    "main pool": (LORA, Schedule("streams", (Pool("main", (0,), TILE, 0),)), "no main pool has an emitted form"),
    "no up": (LORA, replace(streams(LORA, DOWN), pools=streams(LORA, DOWN).pools[:1]), "one down pool, and up pools"),
    "no pool": (LORA, Schedule("streams"), "an up pool lists the main members with a branch"),
    "one launch": (
        LORA,
        Schedule("streams", (Pool("down", (1,), replace(DOWN, num_stages=2), 0), Pool("up", (0,), UP, 0))),
        "up pools in the next launch",
    ),
    "saved slices": (group(33, 200, Main(136, (Lora(8, saved=True),))), streams(LORA, DOWN, 2), "mm_a00 is saved"),
    "capped join": (LORA, capped(streams(LORA, DOWN), up=3), "a TMA pool is persistent"),
    "queue": (
        LORA,
        replace(streams(LORA, DOWN), pools=(replace(streams(LORA, DOWN).pools[0], chunk=3),)),
        "nor chunks",
    ),
    "no worker": (LORA, capped(streams(LORA, DOWN), down=0), "workers are at least 1"),
    "no multiprocessor": (
        LORA,
        capped(streams(LORA, DOWN), vendor=0),
        "vendor_multiprocessors is a cap of .*at least 1",
    ),
    "another kind": (
        LORA,
        replace(split(LORA, TILE, DOWN), vendor_multiprocessors=8),
        "vendor_multiprocessors is a cap of schedule 'streams'",
    ),
    "batch": (
        replace(LORA, members=tuple(replace(member, batch=2) for member in LORA.members)),
        streams(LORA, DOWN),
        "batched members",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_a_reason(case: str) -> None:
    value, asked, reason = REFUSED[case]
    with pytest.raises(EmissionError, match=reason):
        emit(value, asked, name="k", tier="fp32", why="a test")
