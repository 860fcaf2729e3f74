"""Cost models, one a file: pure functions of group, schedule and device."""

if __name__ != "fusioncc.cost_models":
    raise ImportError(
        f"this package is fusioncc.cost_models: write 'import fusioncc.cost_models', not 'import {__name__}'"
    )
