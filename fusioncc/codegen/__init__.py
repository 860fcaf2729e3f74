"""Emission of Triton modules: text only, neither torch nor triton is imported here."""

from fusioncc.codegen.emission import check, emit
from fusioncc.codegen.launch import Arg, Buffer, EmittedModule, KernelLaunch

__all__ = ["Arg", "Buffer", "EmittedModule", "KernelLaunch", "check", "emit"]
