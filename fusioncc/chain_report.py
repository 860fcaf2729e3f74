"""What a plan says of its chains: lines for a terminal, and rows of the table in ``decisions.md``. Chains that differ
in names only share a row."""

from collections.abc import Iterable

from fusioncc.plan import ChainPlan

CHAIN_COLUMNS = ("chain", "ops", "tensors", "claimed", "why", "before → after")
MIB = 1 << 20


def chain_lines(chains: Iterable[ChainPlan]) -> list[str]:
    """A paragraph for each kind of chain."""
    lines = []
    for alike in alike_chains(chains):
        chain = alike[0]
        lines += [
            "",
            f"{', '.join(each.name for each in alike)}: {'one kernel' if chain.claimed else 'left as it is'}, "
            f"tier {chain.tier}, kernel {chain.kernel}"
            + (f", inserted as {chain.insertion}" if chain.insertion else ""),
            f"    ops         {ops_of(chain)}",
            f"    tensors     {tensors_of(chain)}",
            f"    accounting  {accounting(chain)}",
            f"    why         {chain.why}",
        ]
    return lines


def chain_rows(chains: Iterable[ChainPlan]) -> list[tuple[str, ...]]:
    """The cells of ``CHAIN_COLUMNS``."""
    return [
        (
            ", ".join(each.name for each in alike),
            ops_of(alike[0]),
            tensors_of(alike[0]),
            ("yes" if alike[0].claimed else "no") + f", kernel {alike[0].kernel}",
            alike[0].why,
            accounting(alike[0]),
        )
        for alike in alike_chains(chains)
    ]


def alike_chains(chains: Iterable[ChainPlan]) -> list[list[ChainPlan]]:
    """Chains of one kernel and one decision together."""
    found: dict[object, list[ChainPlan]] = {}
    for chain in chains:
        found.setdefault((chain.kernel, chain.claimed, chain.why, chain.insertion), []).append(chain)
    return list(found.values())


def ops_of(chain: ChainPlan) -> str:
    """The ops by their names, in order."""
    return ", ".join(op.target.split(".")[1].strip("_") for op in chain.ops)


def tensors_of(chain: ChainPlan) -> str:
    """What it reads and writes."""
    reads = [f"{list(each.shape)} {each.dtype}" for each in chain.inputs]
    writes = [f"{list(chain.shape_of(each.value))} {chain.dtype_of(each.value)}" for each in chain.results]
    return f"{_counted(reads)} → {_counted(writes)}"


def accounting(chain: ChainPlan) -> str:
    """Kernels, bytes moved and peaks, before and after."""
    before, after = chain.before, chain.after
    return (
        f"kernels {before.kernels} → {after.kernels}, moved {_mib(before.bytes)} → {_mib(after.bytes)}, "
        f"peak {_mib(before.peak_bytes)} → {_mib(after.peak_bytes)} "
        f"({_mib(chain.before_kept_bytes)} → {_mib(chain.after_kept_bytes)} where the inputs are kept)"
    )


def _counted(texts: list[str]) -> str:
    counts = {text: texts.count(text) for text in texts}
    return ", ".join(text if count == 1 else f"{count} x {text}" for text, count in counts.items())


def _mib(count: int) -> str:
    return f"{count / MIB:.1f} MiB"
