"""An attempt whose failure costs only itself: a warning, and a refusal in the plan."""

from collections.abc import Callable

from fusioncc.decision import Rejected
from fusioncc.errors import FusionError, PlanError
from fusioncc.passes.plan_groups import Setting
from fusioncc.seam import one_line, warn


def attempted(attempt: Callable[[], None], setting: Setting, refusal: tuple[str, str], left: str) -> Rejected | None:
    """Why an ``attempt`` failed, as a refusal of this rule and name; None where it did not. ``left`` says in the
    warning what stays as it was.

    Raises:
        PlanError: the plan that was given does not fit.
        FusionError: the attempt failed, under ``on_error="raise"``.
    """
    try:
        attempt()
    except PlanError:
        raise
    except FusionError as error:
        if setting.options.on_error == "raise":
            raise
        warn(f"{one_line(error)}; {left}")
        return Rejected(*refusal, str(error))
    return None
