"""Programmatic dependent launch for kernels that Inductor launches.

Inductor compiles a user's Triton kernel with warps and stages only. From the first of ours that starts early, the
option is written beside them into Inductor's code for such kernels; those of others are left alone. Where a later
Inductor writes its code otherwise, or launches from C++, the option is lost and the kernel starts when the launch
before it has ended: slower, and as right.

torch also takes a kernel with inline assembly for one that may write every tensor it is given, and then copies what
such kernels share, between them. The instructions that order launches are such assembly; from then on torch knows that
they write nothing.
"""

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any
from unittest import mock

MARK = "fusioncc_starts_early"
"""Attribute of a Triton function that is launched so."""
META, OPTION = "triton_meta={", "'launch_pdl': True, "
ASSEMBLY = "tt.elementwise_inline_asm"
ORDERING = re.compile(r"griddepcontrol\.(wait|launch_dependents);[\s]*(//[^\n;]*)?")
"""An operation in Triton's IR, and all that its assembly may be to be known to order launches only."""


def marked(function: Any) -> Any:
    """The Triton function, which Inductor will launch early from now on."""
    _teach_inductor()
    setattr(function, MARK, True)
    return function


@functools.cache
def _teach_inductor() -> None:
    from torch._higher_order_ops import triton_kernel_wrap
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen as Wrapper

    parse = triton_kernel_wrap.ttir_to_functions
    setattr(triton_kernel_wrap, parse.__name__, _without_order(parse))
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


def _without_order(parse: Callable[..., Any]) -> Callable[..., Any]:
    """torch's reader of a kernel's IR, for which assembly that orders launches writes nothing."""

    @functools.wraps(parse)
    def parsed(module: Any, *args: Any, **kwargs: Any) -> Any:
        functions = parse(module, *args, **kwargs)
        assembly = re.findall(re.escape(ASSEMBLY) + r' "([^"]*)"', str(module))
        found = sum(each.name == ASSEMBLY for body in functions.values() for ops in body.values() for each in ops)
        if len(assembly) != found or not all(map(ORDERING.fullmatch, assembly)):
            return functions
        return {
            name: {result: [_pure(each) for each in operations] for result, operations in body.items()}
            for name, body in functions.items()
        }

    return parsed


def _pure(operation: Any) -> Any:
    return dataclasses.replace(operation, is_pure=True) if operation.name == ASSEMBLY else operation
