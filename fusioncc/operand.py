"""A tensor that a kernel reads, as a plain frozen value."""

from dataclasses import dataclass
from math import prod

EMITTED_DTYPES = ("bf16", "fp16", "fp32")
"""Dtypes that emitted kernels read and write."""
DTYPE_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8, "fp8e4m3": 1, "fp8e5m2": 1, "int8": 1}
DTYPE_BYTES |= {"uint8": 1, "bool": 1, "int16": 2, "int32": 4, "int64": 8}


@dataclass(frozen=True)
class Operand:
    """A tensor read through its own pointer: the FX node that holds it, logical shape, strides in elements, dtype.

    LHS: ``[M, K]``; weight: ``[K, N]``; bias: ``[N]``; tensor scale: ``[]``.
    """

    node: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    aligned: bool = True
    """Whether the first element lies on a multiple of 16 bytes, as TMA descriptors need."""
    made: bool = False
    """Whether the graph computes this weight: its kernel may run between two launches of the group."""

    @property
    def bytes(self) -> int:
        """Bytes of the distinct elements (an expanded dimension of stride 0 counts once)."""
        sizes = (size for size, stride in zip(self.shape, self.strides, strict=True) if stride != 0)
        return prod(sizes) * DTYPE_BYTES[self.dtype]
