"""The check in blocks of rows says what the module's own check says, whatever the size of a block."""

import re
from itertools import product

import pytest
import torch

from fusioncc.codegen import emit
from fusioncc.runtime import rightness
from fusioncc.runtime.load import load
from fusioncc.runtime.rightness import problem_of
from fusioncc.tuning.bench import has_rows
from tests.codegen.golden_cases import golden
from tests.shown import one_of_each

MODULES = ("inline_mlp", "inline_ended_swapped", "split_saved", "inline_rotary")
MUTATIONS = {
    "nothing": (r"\A", ""),
    "beside": (r"\b(?:out|h)\d?_ptr \+ ", r"\g<0>1 + "),
    "scaled": (r"\bSCALE\d*=([-\d.]+)", r"\g<0> * 1.05"),
    "outside": (
        r"(?m)^    return \(?(\w+),",
        r"    \1.as_strided((1,), (1,), \1.storage_offset() - 1).fill_(1.0)\n\g<0>",
    ),
}
"""Name -> pattern of the first place that is changed, and what is written there."""


CASES = [*product(MODULES, MUTATIONS), ("horizontal_rotary", "nothing"), ("horizontal_rotary", "beside")]


def kind_of(case: tuple[str, str]) -> str:
    """The module as it is emitted, or what is changed in it."""
    module, mutation = case
    return module if mutation == "nothing" else mutation


@pytest.mark.parametrize("case", one_of_each(CASES, kind_of, "-".join))
def test_as_the_module_says(case: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    name, mutation = case
    group, schedule, tier = golden()[name]
    emitted = emit(group, schedule, name=name, tier=tier, why="a test")
    source, count = re.subn(*MUTATIONS[mutation], emitted.source, count=1)
    assert count == 1
    module = load(name, source)
    operands = module.draw(0)
    by_rows = [has_rows(operand, group) for operand in emitted.operands]
    said = module.check(operands)
    for rows in (1024, 40, 5):  # sequences of rotations have 23 or 32 rows here, some go on in the next block
        monkeypatch.setattr(rightness, "ROWS", rows)
        found = problem_of(module, operands, by_rows)
        assert bool(found) == bool(said) == (mutation != "nothing")
        assert found.split(":")[0] == said.split(":")[0], "of the same result, or of what is beside them"
    assert torch.get_default_dtype() == torch.float32
