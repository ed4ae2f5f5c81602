#!/usr/bin/env python3
"""Draws a measurement of the pool: python bench/pool_plot.py bench/results/<…>/raw.json

Writes chart.png beside the raw data. Needs matplotlib, which the bench environment has.
"""

import json
import statistics
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402

import loads  # noqa: E402
import mixed  # noqa: E402
import plot  # noqa: E402
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
        for connections in run["settings"]["connections"]:
            yield lambda axes, run=run, pin=pin, count=connections: draw_cost(axes, run, pin, count)


def draw_order(axes, rows):
    """The most passed over of each run: a point a run."""
    groups = {}
    for row in rows:
        load = loads.Load(**row["load"])
        label = f"{row['arm']}\n{load.threads} × {load.microseconds} µs\n{load.policy}"
        groups.setdefault((label, row["arm"]), []).append(
            row["client"]["order"]["most_passed_over"]
        )
    for place, ((_, arm), values) in enumerate(groups.items()):
        # On a logarithmic axis nobody passed over would have no place.
        axes.plot([place] * len(values), [max(value, 1) for value in values], "o", color=color(arm))
    for bound in (LONG_WAIT, TOO_LONG):
        axes.axhline(bound, color=plot.FAINT, linewidth=0.8, linestyle="--")
    axes.set_yscale("log")
    axes.set_xticks(range(len(groups)), [label for label, _ in groups], fontsize=6)
    axes.set_title("Most passed over in a run (a long wait is over 100, out of order over 1000)")


def draw_mixed(axes, rows, app):
    """The fast route's p99 beside each slow one."""
    series = {}
    for server in mixed.SERVERS:
        cells = (mixed.cell(rows, app, server, scenario) for scenario in mixed.SCENARIOS)
        series[server] = [
            statistics.median(row["latency_us"]["p99"] / 1000 for row in cell.values())
            if cell
            else 0
            for cell in cells
        ]
    bars(axes, list(map(str, mixed.SCENARIOS)), series)
    axes.set_yscale("log")
    axes.set_title(f"{app}: p99 of the fast route beside slow views, {mixed.THREADS} threads, ms")


def draw_cost(axes, run, pin, connections):
    """Server CPU a request by threads and view."""
    series = {}
    for arm in run["arms"]:
        cells = [result_page.select(run, name, connections, arm) for name in run["workloads"]]
        series[arm] = [
            result_page.median(cell, "cpu_us_per_request") if cell else 0 for cell in cells
        ]
    bars(axes, list(run["workloads"]), series)
    axes.set_yscale("log")
    pinned = "server on one CPU" if pin == "apart" else "not pinned"
    axes.set_title(f"Server CPU a request, µs: {connections} connections, {pinned}")


def bars(axes, groups, series):
    width = 0.8 / len(series)
    for index, (name, values) in enumerate(series.items()):
        places = [place + index * width for place in range(len(groups))]
        axes.bar(places, values, width, label=name, color=color(name))
    middle = 0.4 - width / 2
    axes.set_xticks([place + middle for place in range(len(groups))], groups, fontsize=8)
    axes.legend(fontsize=7)


def color(name):
    return COLORS.get(name, plot.FAINT)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    path = Path(sys.argv[1])
    raw = json.loads(path.read_text())
    drawn = list(panels(raw["sections"]))
    if not drawn:
        sys.exit(f"{path} holds no section that can be drawn")
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
