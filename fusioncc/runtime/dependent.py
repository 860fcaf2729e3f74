"""Programmatic dependent launch for kernels that Inductor launches.

Inductor compiles a user's Triton kernel with warps and stages only. From the first of ours that starts early, the
option is written beside them into Inductor's code for such kernels; those of others are left alone. Where a later
Inductor writes its code otherwise, or launches from C++, the option is lost and the kernel starts when the launch
before it has ended: slower, and as right.
"""

import functools
from collections.abc import Callable
from typing import Any
from unittest import mock

MARK = "fusioncc_starts_early"
"""Attribute of a Triton function that is launched so."""
META, OPTION = "triton_meta={", "'launch_pdl': True, "


def marked(function: Any) -> Any:
    """The Triton function, which Inductor will launch early from now on."""
    _teach_inductor()
    setattr(function, MARK, True)
    return function


@functools.cache
def _teach_inductor() -> None:
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen as Wrapper

    define = Wrapper.define_user_defined_triton_kernel

    @functools.wraps(define)
    def defined(self: Any, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        if not getattr(kernel, MARK, False):
            return define(self, kernel, *args, **kwargs)
        with mock.patch.object(self, "define_kernel", functools.partial(_with_option, self.define_kernel)):
            return define(self, kernel, *args, **kwargs)

    setattr(Wrapper, define.__name__, defined)


def _with_option(define_kernel: Callable[..., Any], name: str, body: str, *args: Any, **kwargs: Any) -> Any:
    return define_kernel(name, body.replace(META, META + OPTION, 1), *args, **kwargs)
