"""What the vendor's kernels run: the operations of a group one after another, without an emitted kernel."""

from dataclasses import replace

from fusioncc.codegen.context import Context
from fusioncc.codegen.launch import EmittedModule
from fusioncc.codegen.module import IMPORTS
from fusioncc.codegen.self_check import SelfCheck
from fusioncc.group import Group
from fusioncc.schedule import Schedule


def reference(group: Group, *, name: str, tier: str) -> EmittedModule:
    """A module with the ``eager`` and ``draw`` of every schedule of the group, and no ``launch``. Its fp32 products are
    left to torch's setting, which ``eager`` of an emitted module, being a reference, spells out."""
    context = Context(replace(group, fp32_precision="ieee"), tier, group.mains)
    check = SelfCheck(context, Schedule("library"), name)
    source = "\n\n".join(
        [f'"""{name}: the operations of a group, one after another."""\n\n{IMPORTS}', *check.sections()]
    )
    return EmittedModule(name, source, buffers=(), launches=(), operands=tuple(context.names()))
