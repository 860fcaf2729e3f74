"""Traffic of elementwise chains and attention: the figures of the design, and what a second reader takes."""

import sympy

from fusioncc.cost_models.chain import Gains, fused, gains
from fusioncc.cost_models.launch import Launch, Tensor
from fusioncc.cost_models.memory import moved_bytes, peak_bytes

MIB = 1 << 20
SIZE = 1024 * 12288
G, U = Tensor("g", 2 * SIZE, "input"), Tensor("u", 2 * SIZE, "input")
T = Tensor("t", 2 * SIZE, "intermediate")


def gated(*, quantised: bool) -> tuple[Launch, ...]:
    """T = SiLU(G), Z = T·U, both bf16, and Q = Z in one byte."""
    z = Tensor("z", 2 * SIZE, "intermediate" if quantised else "output")
    q = Tensor("q", SIZE, "output")
    chain = (Launch("pointwise", (G,), (T,)), Launch("pointwise", (T, U), (z,)))
    return (*chain, Launch("pointwise", (z,), (q,))) if quantised else chain


def test_a_gated_activation_moves_72_instead_of_120_mib() -> None:
    chain = gated(quantised=False)
    assert (moved_bytes(chain) / MIB, moved_bytes([fused(chain)]) / MIB) == (120, 72)


def test_with_a_quantised_result_156_108_or_60_mib() -> None:
    silu, product, cast = gated(quantised=True)
    first_two = (fused((silu, product), frozenset({"z"})), cast)
    ways = ((silu, product, cast), first_two, (fused((silu, product, cast)),))
    assert [moved_bytes(way) / MIB for way in ways] == [156, 108, 60]


def test_traffic_falls_by_96_mib_and_the_peak_from_72_to_60_or_from_96() -> None:
    chain = gated(quantised=True)
    whole = (fused(chain),)
    assert (moved_bytes(chain) - moved_bytes(whole)) / MIB == 96
    assert (peak_bytes(chain) / MIB, peak_bytes(whole) / MIB) == (72, 60)
    assert (peak_bytes(chain, keep_inputs=True) / MIB, peak_bytes(whole, keep_inputs=True) / MIB) == (96, 60)


def test_attention_moves_8_mib_and_its_scores_a_gib() -> None:
    """One head, L = 8192, d = 128, bf16; S and P fp32."""
    length, depth = 8192, 128
    q, k, v = (Tensor(name, 2 * length * depth, "input") for name in "qkv")
    s, p = (Tensor(name, 4 * length * length, "intermediate") for name in "sp")
    o = Tensor("o", 2 * length * depth, "output")
    naive = (Launch("vendor", (q, k), (s,)), Launch("pointwise", (s,), (p,)), Launch("vendor", (p, v), (o,)))
    online = fused(naive)
    assert moved_bytes([online]) == 8 * MIB
    assert moved_bytes(naive) - moved_bytes([online]) == 1 << 30


def readers(count: int, made: Tensor) -> list[Launch]:
    return [Launch("pointwise", (made,), (Tensor(f"z{i}", 1, "output"),)) for i in range(count)]


def test_a_kept_intermediate_saves_one_read_and_no_write() -> None:
    maker = Launch("pointwise", (G,), (T,))
    assert gains(maker, readers(1, T)) == Gains(2 * T.bytes, 2 * T.bytes)
    assert gains(maker, readers(2, T)) == Gains(T.bytes, 3 * T.bytes - G.bytes)


def test_where_a_second_reader_turns_the_gain_of_making_it_twice() -> None:
    """Made again in both readers, an intermediate pays while its operands are less than three times as large; against
    keeping it, while less than twice."""
    operands, made = sympy.symbols("I T", positive=True)
    maker = Launch("pointwise", (Tensor("i", operands, "input"),), (Tensor("t", made, "intermediate"),))
    found = gains(maker, readers(2, Tensor("t", made, "intermediate")))
    assert sympy.solve(found.repeated, operands) == [3 * made]
    assert sympy.solve(found.repeated - found.kept, operands) == [2 * made]
