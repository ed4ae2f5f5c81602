#!/usr/bin/env python3
"""Draws a measurement of the pool: python bench/pool_plot.py bench/results/<…>/raw.json

Writes chart.png beside the raw data. Needs matplotlib, which the bench environment has.
"""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import LogFormatter  # noqa: E402

import loads  # noqa: E402
import mixed  # noqa: E402
import plot  # noqa: E402
import pool_page  # noqa: E402
import result_page  # noqa: E402

# Over these a run is out of order: the bounds of bench/src/order.rs.
LONG_WAIT, TOO_LONG = 100, 1000
COLORS = {
    "fair": plot.OURS,
    "hoopsnake-uring": plot.OURS,
    "zero-config": plot.OURS,
    "threads-1": "#8fbf9f",
    "keep-off": "#c77d2e",
    "elastic-off": "#c77d2e",
    "turn-off": "#a84632",
    "control": "#8fbf9f",
    "granian": "#5b6f8c",
    "granian-1": "#9aa5b1",
    "granian-8": "#5b6f8c",
    "gunicorn-gthread": "#9aa5b1",
    "m0serve": "#b9a7c9",
}
ROW_INCHES = 3.6


def panels(sections):
    """A function for each panel, to be called with its axes."""
    if "arms" in sections or "order" in sections:
        rows = [*sections.get("arms", ()), *sections.get("order", ())]
        yield lambda axes: draw_order(axes, rows)
    if "mixed" in sections:
        for app in mixed.APPS:
            yield lambda axes, app=app: draw_mixed(axes, sections["mixed"], app)
    for pin, run in sections.get("throughput", {}).items():
        yield lambda axes, run=run, pin=pin: draw_cost(axes, run, pin)


def draw_order(axes, rows):
    """The most passed over of each run: a point a run."""
    names = list(dict.fromkeys(row["arm"] for row in rows))
    groups = list(dict.fromkeys(loads.Load(**row["load"]) for row in rows))
    series = {name: [[] for _ in groups] for name in names}
    for row in rows:
        # On a logarithmic axis nobody passed over would have no place.
        value = max(row["client"]["order"]["most_passed_over"], 1)
        series[row["arm"]][groups.index(loads.Load(**row["load"]))].append(value)
    points(axes, [str(load).replace(", ", "\n") for load in groups], series)
    for bound in (LONG_WAIT, TOO_LONG):
        axes.axhline(bound, color=plot.FAINT, linewidth=0.8, linestyle="--")
    axes.set_title("Most passed over in a run (a long wait is over 100, out of order over 1000)")


def draw_mixed(axes, rows, app):
    """The fast route's p99 beside each slow one: a point a run."""
    series = {
        server: [
            [
                row["latency_us"]["p99"] / 1000
                for row in mixed.cell(rows, app, server, scenario).values()
            ]
            for scenario in mixed.SCENARIOS
        ]
        for server in mixed.SERVERS
    }
    points(axes, list(map(str, mixed.SCENARIOS)), series)
    axes.set_title(f"{app}: p99 of the fast route beside slow views, {mixed.THREADS} threads, ms")


def draw_cost(axes, run, pin):
    """Server CPU a request over that of one thread in the same round: a point a run."""
    baseline = run["settings"]["baseline"]
    groups = [
        (name, count) for name in run["workloads"] for count in run["settings"]["connections"]
    ]
    series = {
        arm: [ratios(run, name, count, arm, baseline) for name, count in groups]
        for arm in run["arms"]
        if arm != baseline
    }
    points(axes, [f"{name}\n{count}" for name, count in groups], series)
    axes.axhline(1, color=plot.FAINT, linewidth=0.8, linestyle="--")
    pinned = "server on one CPU" if pin == "apart" else "not pinned"
    axes.set_title(f"Server CPU a request over one thread's, by view and connections; {pinned}")


def ratios(run, workload, connections, arm, baseline):
    ours = result_page.select(run, workload, connections, arm)
    theirs = result_page.select(run, workload, connections, baseline)
    field = "cpu_us_per_request"
    return [
        ours[number][field] / theirs[number][field]
        for number in sorted(ours.keys() & theirs.keys())
        if theirs[number][field]
    ]


def points(axes, groups, series):
    """Every run of each group, a column for each of the series, on a logarithmic axis."""
    width = 0.7 / len(series)
    for index, (name, values) in enumerate(series.items()):
        at = [
            (place + (index + 0.5) * width - 0.35, value)
            for place, group in enumerate(values)
            for value in group
        ]
        axes.plot(
            *zip(*at, strict=True) if at else ([], []), "o", ms=5, label=name, color=color(name)
        )
    for edge in range(1, len(groups)):
        axes.axvline(edge - 0.5, color=plot.FAINT, linewidth=0.4, alpha=0.4)
    axes.set_xlim(-0.5, len(groups) - 0.5)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.4)))
    axes.set_xticks(range(len(groups)), groups, fontsize=7)
    axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))


def color(name):
    return COLORS.get(name, plot.FAINT)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    path = Path(sys.argv[1])
    raw = json.loads(path.read_text())
    drawn = list(panels(raw["sections"]))
    if not drawn:
        sys.exit(f"{path} holds none of {', '.join(sorted(pool_page.DRAWN))}")
    figure, axes = plt.subplots(
        len(drawn), 1, figsize=(10, ROW_INCHES * len(drawn)), squeeze=False, layout="constrained"
    )
    for draw, place in zip(drawn, axes[:, 0], strict=True):
        draw(place)
        place.title.set_fontsize(10)
        place.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{raw['date']}, {raw['machine_class']}, Python {raw['python']}", fontsize=9)
    figure.savefig(path.with_name("chart.png"), dpi=100)


if __name__ == "__main__":
    main()
