"""Programmatic dependent launch for kernels that Inductor launches.

Inductor compiles a user's Triton kernel with warps and stages only. While one of ours that starts early is written into
Inductor's code, the option is written beside them. Where a later Inductor writes its code otherwise, or launches from
C++, the option is lost and the kernel starts when the launch before it has ended: slower, and as right.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

MARK = "fusioncc_starts_early"
"""Attribute of a Triton function that is launched so."""
META, OPTION = "triton_meta={", "'launch_pdl': True, "


def marked(function: Any) -> Any:
    """The Triton function, for :func:`dependent_launches` to know."""
    setattr(function, MARK, True)
    return function


@contextmanager
def dependent_launches() -> Iterator[None]:
    """Marked kernels that Inductor writes into its code inside start during the launch before them."""
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen as Wrapper

    define = Wrapper.define_user_defined_triton_kernel

    @functools.wraps(define)
    def defined(self: Any, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        if not getattr(kernel, MARK, False):
            return define(self, kernel, *args, **kwargs)
        with mock.patch.object(self, "define_kernel", functools.partial(_with_option, self.define_kernel)):
            return define(self, kernel, *args, **kwargs)

    with mock.patch.object(Wrapper, "define_user_defined_triton_kernel", defined):
        yield


def _with_option(define_kernel: Callable[..., Any], name: str, body: str, *args: Any, **kwargs: Any) -> Any:
    return define_kernel(name, body.replace(META, META + OPTION, 1), *args, **kwargs)
