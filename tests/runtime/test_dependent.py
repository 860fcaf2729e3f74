"""Kernels that start early keep the option on their way through Inductor's code; other kernels do not get it."""

import inspect
from types import SimpleNamespace
from typing import Any

from torch._inductor.codegen.wrapper import PythonWrapperCodegen

from fusioncc.runtime.dependent import META, dependent_launches, marked

BODY = "@triton_heuristics.user_autotune(\n    triton_meta={'signature': {}},\n)"


def defined(function: Any, monkeypatch: Any) -> str:
    """What Inductor would write for a kernel, given the wrapper that is in force."""
    written: list[str] = []

    def define(self: Any, kernel: Any, *args: Any) -> None:
        self.define_kernel("k", BODY, "metadata")

    monkeypatch.setattr(PythonWrapperCodegen, "define_user_defined_triton_kernel", define)
    wrapper = SimpleNamespace(define_kernel=lambda name, body, metadata: written.append(body))
    with dependent_launches():
        PythonWrapperCodegen.define_user_defined_triton_kernel(wrapper, function)
    assert PythonWrapperCodegen.define_user_defined_triton_kernel is define
    wrapper.define_kernel("k", BODY, "metadata")
    assert written.pop() == BODY, "the option stays with the kernel that asked for it"
    return written.pop()


def test_a_marked_kernel_gets_the_option(monkeypatch: Any) -> None:
    text = defined(marked(SimpleNamespace()), monkeypatch)
    assert text == BODY.replace("triton_meta={", "triton_meta={'launch_pdl': True, ")


def test_another_kernel_does_not(monkeypatch: Any) -> None:
    assert defined(SimpleNamespace(), monkeypatch) == BODY


def test_inductor_still_writes_what_the_option_is_put_into() -> None:
    source = inspect.getsource(PythonWrapperCodegen.define_user_defined_triton_kernel)
    assert META in source.replace("triton_meta={triton_meta!r}", META)
    assert "triton_meta={triton_meta!r}" in source
    assert "self.define_kernel(" in source


def test_inductor_still_hands_the_option_to_triton() -> None:
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    assert 'compile_meta.get("launch_pdl"' in inspect.getsource(CachingAutotuner)
