"""Build chains: load the modules of the chains that were claimed and compile their kernels before anything is
inserted."""

from dataclasses import dataclass
from functools import partial
from types import ModuleType

from fusioncc.codegen.launch import EmittedModule
from fusioncc.decision import Rejected, accepted_with
from fusioncc.errors import FusionError
from fusioncc.passes.insert_chains import rows_of
from fusioncc.passes.plan_chains import as_unclaimed
from fusioncc.passes.plan_groups import Setting
from fusioncc.plan import ChainPlan
from fusioncc.runtime.build import build
from fusioncc.runtime.load import load
from fusioncc.seam import one_line, translated, warn


@dataclass(frozen=True)
class ReadyChain:
    """A chain whose kernel is loaded and known to build."""

    planned: ChainPlan
    emitted: EmittedModule
    module: ModuleType


@dataclass(frozen=True)
class BuiltChains:
    """Every chain as it will run, those that are claimed, and what did not build."""

    chains: tuple[ChainPlan, ...]
    ready: tuple[ReadyChain, ...]
    rejections: tuple[Rejected, ...]


def build_chains(chains: tuple[ChainPlan, ...], modules: dict[str, EmittedModule], setting: Setting) -> BuiltChains:
    """Build the claimed chains; a failure leaves its chain as it was, with one warning that names it.

    Raises:
        FusionError: a module does not load or build, and ``on_error`` is ``raise``.
    """
    done, ready, rejections = [], [], []
    for planned in chains:
        if not planned.claimed:
            done.append(planned)
            continue
        emitted = modules[planned.kernel]
        try:
            action = partial(_built, planned, emitted, accepted_with(setting.runnable, "cuda"))
            module = translated("building its kernel failed", action, FusionError)
        except FusionError as error:
            if setting.options.on_error == "raise":
                raise type(error)(f"{planned.name}: {error}") from error
            warn(f"{planned.name}: {one_line(error)}; the chain is left as it was")
            rejections.append(Rejected("build", planned.name, str(error)))
            done.append(as_unclaimed(planned, "the kernel did not build"))
            continue
        ready.append(ReadyChain(planned, emitted, module))
        done.append(planned)
    return BuiltChains(tuple(done), tuple(ready), tuple(rejections))


def _built(planned: ChainPlan, emitted: EmittedModule, compiled: bool) -> ModuleType:
    module = load(emitted.name, emitted.source)
    if compiled:
        build(emitted, module, rows_of(planned))
    return module
