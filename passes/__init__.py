"""Graph passes, one a file, named after the pass."""

if __name__ != "fusioncc.passes":
    raise ImportError("import this package as fusioncc.passes, not as passes")
