"""What a plan says of its chains: lines for a terminal, and rows of the table in ``decisions.md``. Chains that differ
in names only share a row."""

from collections.abc import Iterable

from fusioncc.chain import Chain
from fusioncc.plan import ChainPlan

CHAIN_COLUMNS = ("chain", "ops", "tensors", "claimed", "why", "before → after")
KIB, MIB = 1 << 10, 1 << 20


def chain_lines(chains: Iterable[ChainPlan]) -> list[str]:
    """A paragraph for each kind of chain; a short one for those that are left as they are."""
    lines = []
    for alike in alike_chains(chains):
        chain, names = alike[0], ", ".join(each.name for each in alike)
        if not chain.claimed:
            lines += ["", f"{names}: left as it is: {chain.why}", f"    {ops_of(chain)}: {tensors_of(chain)}"]
            continue
        how = f", inserted as {chain.insertion}" if chain.insertion else ""
        lines += [
            "",
            f"{names}: one kernel, tier {chain.tier}, kernel {chain.kernel}{how}",
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
            f"yes, kernel {alike[0].kernel}" if alike[0].claimed else "no",
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


def ops_of(chain: Chain) -> str:
    """The ops by their names, in order."""
    return ", ".join(op.stem for op in chain.ops)


def tensors_of(chain: ChainPlan) -> str:
    """What it reads and writes."""
    reads = [f"{list(each.shape)} {each.dtype}" for each in chain.inputs]
    writes = [f"{list(chain.shape_of(each.value))} {chain.dtype_of(each.value)}" for each in chain.results]
    return f"{_counted(reads)} → {_counted(writes)}"


def accounting(chain: ChainPlan) -> str:
    """Kernels, bytes moved and peaks, before and after."""
    before, after = chain.before, chain.after
    return (
        f"kernels {before.kernels} → {after.kernels}, moved {_size(before.bytes)} → {_size(after.bytes)}, "
        f"peak {_size(before.peak_bytes)} → {_size(after.peak_bytes)} "
        f"({_size(chain.before_kept_bytes)} → {_size(chain.after_kept_bytes)} where the inputs are kept)"
    )


def _counted(texts: list[str]) -> str:
    counts = {text: texts.count(text) for text in texts}
    return ", ".join(text if count == 1 else f"{count} x {text}" for text, count in counts.items())


def _size(count: int) -> str:
    return f"{count / MIB:.1f} MiB" if count >= MIB else f"{count / KIB:.1f} KiB"
