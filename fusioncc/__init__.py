"""fusioncc: graph-level fusion of GEMMs that share an input, LoRA first."""

from fusioncc.api import optimize, plan, plan_of
from fusioncc.config import Options
from fusioncc.errors import FusionError
from fusioncc.fusion_pass import FusionPass
from fusioncc.plan import Plan

__version__ = "0.1.0"
__all__ = ["FusionError", "FusionPass", "Options", "Plan", "__version__", "optimize", "plan", "plan_of"]
