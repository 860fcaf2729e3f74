"""``fusioncc traffic``: closed forms and crossovers of a plan, in words."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import fusioncc
from fusioncc.cli import app
from fusioncc.decision import Rejected
from fusioncc.device import get_device
from fusioncc.plan import Plan
from fusioncc.traffic_report import traffic_report

ROOT = Path(__file__).parents[1]
H200 = get_device("h200")


class LoRA(nn.Module):
    """One layer: K = 256, N = 512, r = 8."""

    def __init__(self, rank: int = 8) -> None:
        super().__init__()
        self.w = nn.Linear(256, 512, bias=False, dtype=torch.bfloat16)
        self.a = nn.Linear(256, rank, bias=False, dtype=torch.bfloat16)
        self.b = nn.Linear(rank, 512, bias=False, dtype=torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = self.w(x) + 2.0 * self.b(self.a(x))
        return product


class Pair(nn.Module):
    """Two products of one input, without a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(256, 512, bias=False, dtype=torch.bfloat16)
        self.up = nn.Linear(256, 512, bias=False, dtype=torch.bfloat16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.gate(x), self.up(x)


def planned(model: nn.Module, **options: str) -> Plan:
    return fusioncc.plan(model, (torch.zeros(64, 256, dtype=torch.bfloat16),), **options)


@cache
def plain() -> Plan:
    return planned(LoRA())


@pytest.mark.exhaustive
def test_a_layer_with_the_numbers_put_in() -> None:
    text = traffic_report(planned(LoRA(), schedule="split"), H200)
    assert "g0: M = 64, K = 256, N = 512, r = 8; bytes of an element bf16 = 2, fp32 = 4" in text
    bytes_ = 2 * (64 * 256 + 256 * 512 + 256 * 8 + 64 * 512 + 512 * 8)
    assert "split (chosen)" in text
    assert f"inline (runner-up)\n        memory  bf16·(K·M + K·N + K·r + M·N + N·r) = {bytes_ / 1024:.1f} KiB" in text
    once = 2 * (2 * 256 * 512 + 256 * 8 + 512 * 8)
    saved = 2 * (256 * 8 + 512 * 8 + 64 * 8 + 2 * 64 * 512)
    assert (
        f"merged pays against library from call {-(-once // saved)} on; in a single call it begins to at M = " in text
    )
    assert f"once    bf16·(2·K·N + K·r + N·r) = {once / 1024:.1f} KiB" in text
    assert "takes   M·bf16·r = 1.0 KiB" in text


@pytest.mark.exhaustive
def test_products_without_a_branch_have_forms_and_no_crossovers() -> None:
    text = traffic_report(planned(Pair()), H200)
    assert "memory  bf16·(K·M + 2·K·N + 2·M·N)" in text
    assert "merged" not in text


def test_merged_is_not_held_against_itself() -> None:
    model = LoRA().requires_grad_(False)
    text = traffic_report(planned(model, schedule="merged", numerics="relaxed"), H200)
    assert "merged (chosen)\n        memory  bf16·(K·M + K·N + M·N)" in text
    assert "against merged" not in text and "against library" in text


def test_equal_groups_share_a_paragraph() -> None:
    plan = plain()
    (group,) = plan.groups
    text = traffic_report(replace(plan, groups=(group, replace(group, name="g1"))), H200)
    assert "g0, g1: M = 64" in text
    assert text.count("(chosen)") == 1


def test_a_symbolic_m_counts_with_its_hint() -> None:
    plan = plain()
    (group,) = plan.groups
    text = traffic_report(replace(plan, groups=(replace(group, m_symbol="s0"),)), H200)
    assert "M = 64 (planned for, s0 in the graph)" in text


def test_a_size_without_a_hint_cannot_be_counted() -> None:
    lost = (Rejected("sizes", "mm", "M (u0) depends on data"), Rejected("low_rank", "mm_1", "the rank is 512"))
    text = traffic_report(replace(plain(), groups=(), rejections=lost), H200)
    assert text.endswith("\ncannot count mm: M (u0) depends on data\n")


def test_products_without_a_rate_cannot_be_counted() -> None:
    plan = plain()
    (group,) = plan.groups
    members = tuple(replace(member, dtype="fp64") for member in group.members)
    text = traffic_report(replace(plan, groups=(replace(group, members=members),)), H200)
    assert "merged against library cannot be counted" in text


@pytest.mark.exhaustive
def test_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    result = CliRunner().invoke(app, ["traffic", "examples/llama_lora.py:factory", "--device", "a100-40"])
    assert result.exit_code == 0
    assert result.stdout.startswith("Plan for a100-40: 4 groups")
    assert result.stdout.count("(chosen)") == 4
