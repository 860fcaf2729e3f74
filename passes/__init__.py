"""Graph passes, one a file, named after the pass."""

if __name__ != "fusioncc.passes":
    raise ImportError(f"this package is fusioncc.passes: write 'import fusioncc.passes', not 'import {__name__}'")
