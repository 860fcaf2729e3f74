"""What the vendor's kernels run: the same operations one after another, without an emitted kernel."""

from dataclasses import replace

from fusioncc.codegen.context import Context
from fusioncc.codegen.module import IMPORTS
from fusioncc.codegen.self_check import SelfCheck
from fusioncc.group import Group
from fusioncc.schedule import Schedule


def reference(group: Group, *, name: str, tier: str) -> str:
    """A module with ``eager`` and ``draw`` as those of an emitted one. Its fp32 products are as torch is set to make
    them, which an emitted module, whose reference they are, writes out."""
    context = Context(replace(group, fp32_precision="ieee"), tier, group.mains)
    check = SelfCheck(context, Schedule("library"), name)
    return "\n\n".join([f'"""{name}: the operations of a group, one after another."""\n\n{IMPORTS}', *check.sections()])
