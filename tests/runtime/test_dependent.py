"""Kernels that start early keep the option on their way through Inductor's code; other kernels do not get it."""

import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch._higher_order_ops import triton_kernel_wrap
from torch._inductor.codegen.wrapper import PythonWrapperCodegen

from fusioncc.runtime import dependent

ROOT = Path(__file__).parents[2]
BODY = "@triton_heuristics.user_autotune(\n    triton_meta={'signature': {}},\n)"


def defined(function: Any, monkeypatch: Any) -> str:
    """What Inductor writes for a kernel once it has seen one that starts early."""
    written: list[str] = []

    def define(self: Any, kernel: Any, *args: Any) -> None:
        self.define_kernel("k", BODY, "metadata")

    monkeypatch.setattr(triton_kernel_wrap, "ttir_to_functions", triton_kernel_wrap.ttir_to_functions)
    define.__name__ = "define_user_defined_triton_kernel"
    monkeypatch.setattr(PythonWrapperCodegen, define.__name__, define)
    dependent._teach_inductor.cache_clear()
    dependent.marked(SimpleNamespace())
    wrapper = SimpleNamespace(define_kernel=lambda name, body, metadata: written.append(body))
    PythonWrapperCodegen.define_user_defined_triton_kernel(wrapper, function)
    (text,) = written
    wrapper.define_kernel("k", BODY, "metadata")
    assert written[1] == BODY, "the option stays with the kernel that asked for it"
    dependent._teach_inductor.cache_clear()
    return text


def test_a_marked_kernel_gets_the_option(monkeypatch: Any) -> None:
    text = defined(dependent.marked(SimpleNamespace()), monkeypatch)
    assert text == BODY.replace("triton_meta={", "triton_meta={'launch_pdl': True, ")


def test_another_kernel_does_not(monkeypatch: Any) -> None:
    assert defined(SimpleNamespace(), monkeypatch) == BODY


def test_inductor_still_writes_what_the_option_is_put_into() -> None:
    source = inspect.getsource(PythonWrapperCodegen.define_user_defined_triton_kernel)
    assert dependent.META == "triton_meta={"
    assert re.search(r"triton_meta=\{\w+!r\}", source), "a dict, whose text begins with {"
    assert "self.define_kernel(" in source


def test_inductor_still_hands_the_option_to_triton() -> None:
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    assert 'compile_meta.get("launch_pdl"' in inspect.getsource(CachingAutotuner)


@pytest.mark.exhaustive
def test_torch_sees_what_a_kernel_writes(compiler_environment: dict[str, str]) -> None:
    """The buffers, and neither X nor a weight: those would be copied between the launches."""
    command = [sys.executable, "-m", "tests.runtime.written"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=compiler_environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "split_early: main_0 writes out_ptr\n" in done.stdout
