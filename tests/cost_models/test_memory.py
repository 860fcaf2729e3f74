"""Launch lists, traffic and peak live bytes, counted by hand."""

from dataclasses import replace

from fusioncc.cost_models import footprint
from fusioncc.cost_models.launch import Launch, Tensor
from fusioncc.cost_models.launches import launches
from fusioncc.cost_models.memory import peak_bytes
from fusioncc.cost_models.traffic import streamed_names, sweeps, traffic, warm_names
from fusioncc.device import get_device
from fusioncc.group import Operand
from fusioncc.schedule import Footprint, Pool, Schedule, TileConfig
from tests.codegen.cases import k_concat
from tests.cost_models.groups import bundle, lora

H200 = get_device("h200")
MAIN = Pool("main", (0,), TileConfig(64, 128, 64), 1)
SPLIT = Schedule("split", (Pool("down", (1,), TileConfig(16, 16, 64), 0, k_split=4), MAIN))
INLINE = Schedule("inline", (MAIN,))
X, W, A, B, OUT, LOW = 64 * 512 * 2, 512 * 1024 * 2, 512 * 8 * 2, 8 * 1024 * 2, 64 * 1024 * 2, 64 * 8 * 2


def test_library_runs_three_gemms_and_the_sum() -> None:
    group = lora(64, 512, 1024, 8)
    assert [launch.body for launch in launches(group, Schedule("library"))] == [
        "vendor",
        "vendor",
        "vendor",
        "pointwise",
    ]
    moved = (X + W + OUT) + (X + A + LOW) + (LOW + B + OUT) + 3 * OUT
    assert footprint(group, Schedule("library")) == Footprint(4, moved, 3 * OUT)


def test_split_writes_partial_sums_and_no_intermediate_output() -> None:
    partial = 4 * 64 * 16 * 4
    moved = (X + A + partial) + (X + W + B + partial + OUT)
    assert footprint(lora(64, 512, 1024, 8), SPLIT) == Footprint(2, moved, X + partial + OUT)


def test_inline_moves_each_operand_once() -> None:
    assert footprint(lora(64, 512, 1024, 8), INLINE) == Footprint(1, X + W + A + B + OUT, X + OUT)


def test_merged_is_one_gemm_over_a_copy_that_is_held() -> None:
    group = lora(64, 512, 1024, 8)
    assert [launch.body for launch in launches(group, Schedule("merged"))] == ["vendor"]
    assert footprint(group, Schedule("merged")) == Footprint(1, X + W + OUT, X + W + OUT)
    two = footprint(bundle(64, 512, (1024, 8), (256, 0)), Schedule("merged"))
    assert two == Footprint(2, (X + W + OUT) + (X + W // 4 + OUT // 4), X + W + OUT + OUT // 4)


def test_packed_is_one_gemm_over_the_weights_as_they_are() -> None:
    group = bundle(64, 512, (1024, 0), (256, 0))
    (gemm,) = launches(group, Schedule("packed"))
    assert (gemm.body, gemm.n, len(gemm.writes)) == ("vendor", 1280, 2)
    assert footprint(group, Schedule("packed")) == Footprint(1, X + W + W // 4 + OUT + OUT // 4, X + OUT + OUT // 4)


def test_packed_joins_biases_in_a_kernel_of_its_own() -> None:
    plain = bundle(64, 512, (1024, 0), (256, 0))
    biased = replace(plain.members[0], bias=Operand("c", (1024,), (1,), "bf16"))
    group = replace(plain, members=(biased, plain.members[1]))
    joined, gemm = launches(group, Schedule("packed"))
    assert (joined.body, [each.bytes for each in joined.writes]) == ("pointwise", [1280 * 2])
    assert joined.writes[0] in gemm.reads


def test_k_concat_writes_x_once_more_and_runs_a_longer_gemm() -> None:
    group = lora(64, 512, 1024, 8)
    schedule = k_concat(group, TileConfig(16, 16, 64), 4)
    first, sums, gemm = launches(group, schedule)
    low, summed = 64 * 8 * 2, 4 * 64 * 16 * 4
    assert (first.body, sums.body, gemm.body, gemm.n, gemm.k) == ("down", "join", "vendor", 1024, 520)
    assert footprint(group, schedule) == Footprint(
        3, (X + A + X + summed) + (summed + low) + (X + low + W + B + OUT), X + low + OUT
    )


def test_k_concat_of_several_mains_is_one_gemm() -> None:
    group = bundle(64, 512, (1024, 8), (256, 16), (256, 0))
    _, _, gemm, *copies = launches(group, k_concat(group, TileConfig(16, 16, 64), 4))
    assert (gemm.n, gemm.k, len(gemm.writes)) == (1536, 512 + 24, 3)
    assert [each.writes[0].name for each in copies] == ["out0", "out3", "out6"], "out of the rows of the product"
    assert {tensor.name: tensor.bytes for tensor in gemm.reads}["w"] == 1536 * 536 * 2


def test_a_saved_down_product_is_written_by_every_schedule() -> None:
    group, plain = bundle(64, 512, (1024, 8), saved=True), lora(64, 512, 1024, 8)
    for schedule in (SPLIT, INLINE):
        assert footprint(group, schedule).bytes - footprint(plain, schedule).bytes == LOW


def test_fp32_adapters_cast_x_once_for_the_group() -> None:
    group = bundle(64, 512, (1024, 8), (256, 8), adapter="fp32")
    bodies = [launch.body for launch in launches(group, Schedule("library"))]
    assert bodies.count("pointwise") == 1 + 2 and bodies.count("vendor") == 6


def test_a_main_without_branches_stays_a_vendor_gemm() -> None:
    group = bundle(64, 512, (1024, 8), (256, 0))
    assert [launch.body for launch in launches(group, INLINE)] == ["inline", "vendor"]


def test_an_input_dies_at_its_last_use_unless_it_is_kept() -> None:
    x, t, out = Tensor("x", 24, "input"), Tensor("t", 24, "intermediate"), Tensor("out", 24, "output")
    sequence = (Launch("pointwise", (x,), (t,)), Launch("pointwise", (t,), (out,)))
    assert (peak_bytes(sequence), peak_bytes(sequence, keep_inputs=True)) == (48, 72)


def test_a_tensor_is_warm_until_the_l2_has_seen_too_much_since() -> None:
    x, y = Tensor("x", 1 << 20, "input"), Tensor("y", 1 << 20, "output")
    small, large = Tensor("w", 1 << 20, "weight"), Tensor("v", 200 << 20, "weight")
    reader = Launch("pointwise", (x, y), ())
    assert warm_names((Launch("vendor", (x, small), (y,)), reader), H200) == (frozenset(), frozenset({"x", "y"}))
    between = Launch("vendor", (large,), ())
    assert warm_names((Launch("vendor", (x, small), (y,)), between, reader), H200)[2] == frozenset()
    assert warm_names((between, between), H200)[1] == frozenset()


def test_a_weight_beyond_the_l2_is_swept_once_for_each_group_of_rows() -> None:
    assert sweeps(8192, 128, 8) == 8
    (launch,) = launches(lora(8192, 4096, 14336, 16), INLINE)
    assert streamed_names(launch, H200) == {"w0.0"}
    weight = launch.reads[1].bytes
    once = traffic(launch, frozenset(), H200, 8192, 8).read
    assert traffic(launch, frozenset(), H200, 128, 8).read == once + 7 * weight
