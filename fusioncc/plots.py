"""Pictures of a plan, one for each of its different groups: the lanes of the workers of every persistent launch, as
they are simulated, and the roofline of the group on the device."""

import io
from typing import Any

from fusioncc.cost_models.pools import PoolLaunch, simulate
from fusioncc.cost_models.roofline import points, roof
from fusioncc.cost_models.two_pool import persistent_launches
from fusioncc.device import Device, get_device
from fusioncc.errors import MissingExtraError
from fusioncc.in_words import describe_schedule
from fusioncc.plan import GroupPlan, Plan
from fusioncc.report import alike, group_key, names

COLORS = {"down": "#d95f02", "main": "#1b9e77", "wait": "#7570b3", "tail": "#e0e0e0"}
STYLE = {"svg.hashsalt": "fusioncc", "svg.fonttype": "none", "font.size": 9.0}
"""A salt of its own gives the elements of an SVG the same names every time."""
Bar = tuple[int, float, float]
"""Worker, start and end in us."""


def require_matplotlib() -> Any:
    """matplotlib.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import matplotlib
        import matplotlib.collections
        import matplotlib.figure
    except ImportError as error:
        raise MissingExtraError("plots need matplotlib: pip install 'fusioncc[plots]'") from error
    return matplotlib


def pictures(plan: Plan) -> dict[str, str]:
    """An SVG for each different group of ``plan``, by the name of the first group that is so; equal plans give equal
    text.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OptionError: the plan names an unknown device.
    """
    matplotlib, device = require_matplotlib(), get_device(plan.device)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        return {groups[0].name: _picture(matplotlib, groups, device) for groups in alike(plan.groups, group_key)}


def _picture(matplotlib: Any, groups: list[GroupPlan], device: Device) -> str:
    first = groups[0]
    persistent = persistent_launches(first.group, first.schedule, device, first.tier)
    count = len(persistent) + 1
    figure = matplotlib.figure.Figure(figsize=(1 + 5.5 * count, 5), layout="constrained")
    figure.suptitle(f"{names(groups)} on {device.name}: {describe_schedule(first.schedule)}", wrap=True)
    *lanes, last = figure.subplots(1, count, squeeze=False)[0]
    for axes, launch in zip(lanes, persistent, strict=True):
        draw_lanes(matplotlib, axes, launch)
    draw_roofline(axes=last, group=first, device=device)
    out = io.BytesIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue().decode()


def draw_lanes(matplotlib: Any, axes: Any, launch: PoolLaunch) -> None:
    """One lane a worker: its tiles, its waits for flags, and what it has of the tail."""
    timeline = simulate(launch)
    bars: dict[str, list[Bar]] = {kind: [] for kind in COLORS}
    for worker, lane in enumerate(timeline.lanes):
        for span in lane:
            bars[span.kind].append((worker, span.start, span.end))
            if span.waited:
                joined = span.end - launch.join_us
                bars["wait"].append((worker, joined - span.waited, joined))
        bars["tail"].append((worker, timeline.ends[worker], timeline.makespan))
    for kind, found in bars.items():
        if found:
            corners = [[(a, w), (b, w), (b, w + 1), (a, w + 1)] for w, a, b in found]
            label = f"tail, {timeline.tail:.1f} us on the average" if kind == "tail" else f"{kind} ({len(found)})"
            bar = {"facecolors": COLORS[kind], "edgecolors": "white", "linewidths": 0.2, "label": label}
            axes.add_collection(matplotlib.collections.PolyCollection(corners, **bar))
    axes.set(xlim=(0, timeline.makespan), ylim=(len(timeline.lanes), 0), xlabel="us, simulated", ylabel="worker")
    axes.set_title(f"{launch.tiles} main and {launch.down_tiles} down tiles: {timeline.makespan:.1f} us")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2, frameon=False)


def draw_roofline(axes: Any, group: GroupPlan, device: Device) -> None:
    """The roof of the device and the candidates of the group, the one that runs filled."""
    limit, found = roof(group.group, device), points(group.candidates)
    if limit is None or not found:
        axes.set_axis_off()
        axes.set_title(f"no rate known for {group.lhs.dtype}")
        return
    shown = [limit.ridge, *(each.intensity for each in found)]
    corners = (min(shown) / 4, limit.ridge, max(shown) * 4)
    axes.loglog(corners, [limit.tflops(each) for each in corners], color="black")
    for at, each in enumerate(found):
        chosen = each.kind == group.schedule.kind
        axes.plot(
            each.intensity,
            each.tflops,
            "os^Dv<>Pp*"[at % 10],
            color=f"C{at % 10}",
            fillstyle="full" if chosen else "none",
            label=f"{each.kind}, {each.tflops:.3g} TFLOP/s" + (" (runs)" if chosen else ""),
        )
    axes.set(xlabel="FLOP for each byte through the memory", ylabel="TFLOP/s, predicted")
    axes.set_title(f"roofline: {limit.peak_tflops:g} TFLOP/s {limit.unit}, {limit.dram_gbps:g} GB/s")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2, frameon=False)
