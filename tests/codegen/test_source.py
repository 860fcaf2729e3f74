"""The emitted text: golden files, format, names, and the launch description that goes with it."""

import ast
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fusioncc.codegen import EmittedModule, emit
from fusioncc.group import Group, Operand
from tests.codegen.cases import TILE, Main, group, inline
from tests.codegen.golden_cases import golden

GOLDEN = Path(__file__).parent / "golden"
CASES = golden()


def emitted(name: str) -> EmittedModule:
    value, schedule, tier = CASES[name]
    return emit(value, schedule, name=name, tier=tier, why="A golden file.")


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str, request: pytest.FixtureRequest) -> None:
    path, source = GOLDEN / f"{name}.py", emitted(name).source
    if request.config.getoption("--update-golden", default=False):
        path.write_text(source)
    assert source == path.read_text(), "run pytest tests/codegen --update-golden and read the difference"


def test_no_stale_golden() -> None:
    assert {path.stem for path in GOLDEN.glob("*.py")} == set(CASES)


@pytest.mark.parametrize("command", [["format", "--check"], ["check", "--select", "E,F,W,I,UP"]], ids=" ".join)
def test_ruff_has_nothing_to_say(command: list[str]) -> None:
    files = sorted(map(str, GOLDEN.glob("*.py")))
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *command, "--isolated", "--line-length", "120", *files],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", CASES)
def test_launches_describe_the_kernels(name: str) -> None:
    module = emitted(name)
    functions = {node.name: node for node in ast.parse(module.source).body if isinstance(node, ast.FunctionDef)}
    for launch in module.launches:
        assert [arg.name for arg in launch.args] == [arg.arg for arg in functions[launch.kernel].args.args]
        for arg in launch.args:
            if arg.kind == "operand":
                assert arg.operand in module.operands
            if arg.kind == "buffer":
                assert arg.value in {buffer.name for buffer in module.buffers}
    arguments = [arg.arg for arg in functions["launch"].args.args]
    assert len(arguments) == len(module.operands) + 1


@pytest.mark.parametrize("name", CASES)
def test_every_parameter_of_a_kernel_is_read(name: str) -> None:
    for node in ast.parse(emitted(name).source).body:
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            read = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
            assert {arg.arg for arg in node.args.args} <= read


def test_equal_mains_share_a_function() -> None:
    value = group(33, 200, Main(192), Main(64), Main(136))
    module = emit(value, inline(value, TILE), name="k", tier="fp32", why="a test")
    assert [launch.kernel for launch in module.launches] == ["main_0", "main_0", "main_2"]
    assert [launch.programs(33) for launch in module.launches] == [2 * 3, 2 * 1, 2 * 3]


@pytest.mark.parametrize("name", CASES)
def test_equal_layers_give_equal_source(name: str) -> None:
    """No node, module or group is named in the text, so that equal layers share one kernel."""
    value, schedule, tier = CASES[name]
    module = emit(other_layer(value), schedule, name=name, tier=tier, why="A golden file.")
    assert module.source == emitted(name).source
    assert not set(module.operands) & set(emitted(name).operands)


def other_layer(value: Group) -> Group:
    """The group as another layer of the same shapes has it."""

    def renamed(operand: Operand) -> Operand:
        return replace(operand, node=f"{operand.node}_1")

    members = tuple(
        replace(
            member,
            node=f"{member.node}_1",
            source="layers.1.proj",
            weight=renamed(member.weight),
            bias=None if member.bias is None else renamed(member.bias),
        )
        for member in value.members
    )
    epilogues = tuple(
        replace(each, chain=replace(each.chain, inputs=tuple(map(renamed, each.chain.inputs))))
        for each in value.epilogues
    )
    norm = value.norm
    if norm is not None:
        weight = None if norm.weight is None else renamed(norm.weight)
        norm = replace(norm, normed=renamed(norm.normed), weight=weight)
    return replace(
        value,
        name="layers_1",
        norm=norm,
        epilogues=epilogues,
        lhs=renamed(value.lhs),
        members=members,
        branches=tuple(replace(each, scale_tensors=tuple(map(renamed, each.scale_tensors))) for each in value.branches),
        outputs=tuple(replace(output, node=f"{output.node}_1") for output in value.outputs),
        m_symbol="s7*s9" if value.m_symbol else "",
    )


@pytest.mark.parametrize("name", CASES)
def test_lines_fit(name: str) -> None:
    assert max(map(len, emitted(name).source.splitlines())) <= 120


@pytest.mark.parametrize("name", CASES)
def test_no_backslash(name: str) -> None:
    """Torch 2.11 embeds a kernel's source in a string of its wrapper."""
    assert "\\" not in emitted(name).source
