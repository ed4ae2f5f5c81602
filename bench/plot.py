#!/usr/bin/env python3
"""Draws a result as horizontal bars: python3 bench/plot.py bench/results/<…>/raw.json

Writes chart.svg beside the raw data, with plain Python.
"""

import argparse
import json
import sys
from html import escape
from pathlib import Path

import result_page

PANELS = (
    ("cpu_us_per_request", "Server CPU a request, µs (less is better)", "{:.1f}"),
    ("requests_per_second", "Requests a second (more is better)", "{:,.0f}"),
)
WIDTH, MARGIN, LABEL_WIDTH, VALUE_WIDTH = 880, 20, 130, 60
BAR, BAR_GAP, GROUP_GAP, TITLE, HEADING, CAPTION = 16, 5, 30, 34, 22, 6
OURS, THEIRS, INK, FAINT = "#2f7d4f", "#9aa5b1", "#1f2933", "#616e7c"


def render(run, workload=None, arms=None):
    """The chart of one workload, the first by default, and of all arms or some."""
    workload = workload or next(iter(run["workloads"]))
    counts = run["settings"]["connections"]
    present = [
        arm
        for arm in arms or run["arms"]
        if any(result_page.select(run, workload, count, arm) for count in counts)
    ]
    group = HEADING + len(present) * (BAR + BAR_GAP) + GROUP_GAP
    height = MARGIN + 2 * TITLE + group * len(counts) + CAPTION
    panel = (WIDTH - 2 * MARGIN - GROUP_GAP) / len(PANELS)
    shapes = []
    for column, (field, title, form) in enumerate(PANELS):
        left = MARGIN + column * (panel + GROUP_GAP)
        values = {
            (count, arm): result_page.median(cell, field)
            for count in counts
            for arm in present
            if (cell := result_page.select(run, workload, count, arm))
        }
        shapes.append(text(left, MARGIN + 14, title, size=14, weight=600))
        scale = (panel - LABEL_WIDTH - VALUE_WIDTH) / (max(values.values(), default=1) or 1)
        for row, count in enumerate(counts):
            top = MARGIN + TITLE + row * group
            shapes.append(text(left, top + 12, f"{count} connections", color=FAINT))
            for index, arm in enumerate(present):
                y = top + HEADING + index * (BAR + BAR_GAP)
                value = values.get((count, arm))
                shapes += bar(left, y, arm, value, scale, form)
    for line, words in enumerate(caption(run, workload)):
        shapes.append(text(MARGIN, height - 28 + 15 * line, words, size=11, color=FAINT))
    return svg(height, shapes)


def bar(left, y, arm, value, scale, form):
    color = OURS if arm.startswith("hoopsnake") else THEIRS
    shapes = [text(left + LABEL_WIDTH - 8, y + 12, arm, anchor="end")]
    if value is None:
        return [*shapes, text(left + LABEL_WIDTH, y + 12, "no run", color=FAINT)]
    width = max(1.0, value * scale)
    shapes.append(
        f'<rect x="{left + LABEL_WIDTH:.1f}" y="{y}" width="{width:.1f}" height="{BAR}"'
        f' rx="2" fill="{color}"/>'
    )
    return [*shapes, text(left + LABEL_WIDTH + width + 6, y + 12, form.format(value))]


def caption(run, workload):
    machine, settings = run["machine"], run["settings"]
    pinned = "server and client pinned apart" if settings["pin"] == "apart" else "not pinned"
    rounds = "1 round" if settings["rounds"] == 1 else f"medians of {settings['rounds']} rounds"
    return (
        f"{run['workloads'][workload]}; one worker, one thread; {pinned}; {rounds}; {run['date']}",
        f"Linux {machine['kernel'].split('-')[0]}, {machine['cpu_model']},"
        f" {machine['cpus']} CPUs; Python {run['python']}",
    )


def text(x, y, words, size=12, weight=400, color=INK, anchor="start"):
    return (
        f'<text x="{x:.1f}" y="{y}" font-size="{size}" font-weight="{weight}" fill="{color}"'
        f' text-anchor="{anchor}">{escape(words)}</text>'
    )


def svg(height, shapes):
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}"'
        f' height="{height}" font-family="system-ui, sans-serif" role="img">'
    )
    # A ground of its own: the page around it may be dark.
    ground = f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
    return "\n".join([head, ground, *shapes, "</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("raw", type=Path, help="the raw.json of a result")
    parser.add_argument("--workload", help="default: the first of the result")
    parser.add_argument("--arms", nargs="+", metavar="ARM", help="default: all of the result")
    parser.add_argument("--output", type=Path, help="default: chart.svg beside the raw data")
    options = parser.parse_args()
    run = json.loads(options.raw.read_text())
    if not run["runs"]:
        sys.exit(f"{options.raw} holds no runs")
    if options.workload is not None and options.workload not in run["workloads"]:
        sys.exit(f"--workload {options.workload}: the result has {', '.join(run['workloads'])}")
    for arm in options.arms or ():
        if arm not in run["arms"]:
            sys.exit(f"--arms {arm}: the result has {', '.join(run['arms'])}")
    output = options.output or options.raw.with_name("chart.svg")
    output.write_text(render(run, options.workload, options.arms))
    print(f"written: {output}")


if __name__ == "__main__":
    main()
