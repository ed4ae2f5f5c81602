"""A measurement of the pool as a Markdown page; every run is in it or in raw.json beside it."""

import statistics

import counters
import loads
import mixed
import result_page
import statistics_of_pairs

# What pool_plot.py has a panel for.
DRAWN = {"arms", "order", "mixed", "throughput"}


def render(raw):
    lines = [f"# The pool, {raw['date']}", ""]
    if DRAWN & raw["sections"].keys():
        lines += ["![chart](chart.png)", ""]
    if found := faults(raw):
        lines += [*(f"- fault: {' '.join(text.split())}" for text in found), ""]
    sections = raw["sections"]
    for name, part in PARTS.items():
        if name in sections:
            lines += part(sections[name])
    return "\n".join(lines + facts(raw)) + "\n"


def faults(raw):
    """What makes a figure of it no measurement, or an arm's verdict a wrong one."""
    texts, sections = [], raw["sections"]
    for name in ("arms", "order", "wakes"):
        for row in sections.get(name, ()):
            if not row["passed"]:
                load = loads.Load(**row["load"])
                texts.append(f"{name}: {row['arm']} ({load}): {row['verdict']}")
    for row in sections.get("mixed", ()):
        place = f"mixed: round {row['round']} {row['app']} {row['server']}"
        if "failure" in row:
            texts.append(f"{place}: {row['failure']}")
        elif row["errors"]:
            texts.append(f"{place} beside {row['beside']}: {row['errors']}")
    for pin, run in sections.get("throughput", {}).items():
        texts += [
            f"throughput, {pin}: {text.removeprefix('- ')}"
            for text in result_page.failures(run)
            if text
        ]
    return texts


def markdown(headings, rows):
    lines = [f"| {' | '.join(headings)} |", "|---" + "|--:" * (len(headings) - 1) + "|"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]


def arms_part(rows):
    """Each arm and what became of it."""
    headings = (
        "arm",
        "load",
        "n",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
        "max ms",
        "long waits",
        "most passed over",
        "share ms",
        "drops in a slice",
        "yields",
        "verdict",
    )
    return ["## The probe's arms", "", *markdown(headings, map(arm_cells, rows))]


def arm_cells(row):
    found, counted = row["client"], counters_of(row)
    latency = [f"{found['latency_us'][name] / 1000:.1f}" for name in ("p50", "p99", "p999", "max")]
    return [
        row["arm"],
        str(loads.Load(**row["load"])),
        str(found["requests"]),
        *latency,
        str(found["order"]["long_waits"]),
        str(found["order"]["most_passed_over"]),
        "–" if found["gil_share_ms"] is None else f"{found['gil_share_ms']:.3f}",
        "–" if counted is None else str(counted.in_slice_drops),
        "–" if counted is None else str(counted.yields),
        row["verdict"] if row["passed"] else f"**FAILED**: {row['verdict']}",
    ]


def counters_of(row):
    return counters.Counters(**row["counters"]) if row["counters"] else None


def order_part(rows):
    """Medians over rounds, and the worst order of any; ratios to granian in the same round."""
    lines = [
        "## Five threads on a view that holds the lock",
        "",
        "Medians over rounds; long waits and most passed over are the most of any round. The ratio"
        " is that of p99 to granian's in the same round.",
        "",
    ]
    headings = (
        "arm",
        "rounds",
        "req/s",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
        "p99 ratio (pairs)",
        "long waits",
        "most passed over",
    )
    for load in dict.fromkeys(loads.Load(**row["load"]) for row in rows):
        here = [row for row in rows if loads.Load(**row["load"]) == load]
        baseline = by_round(here, "granian")
        table = [
            order_cells(name, by_round(here, name), baseline)
            for name in dict.fromkeys(row["arm"] for row in here)
        ]
        lines += [f"### {load}", "", *markdown(headings, table)]
    return lines


def by_round(rows, arm):
    return {row["round"]: row["client"] for row in rows if row["arm"] == arm}


def order_cells(name, cell, baseline):
    ratio = paired(cell, baseline, lambda found: found["latency_us"]["p99"])
    latency = [
        median(cell, lambda found, at=at: found["latency_us"][at]) / 1000
        for at in ("p50", "p99", "p999")
    ]
    return [
        name,
        str(len(cell)),
        f"{median(cell, lambda found: found['requests_per_second']):.0f}",
        *(f"{value:.1f}" for value in latency),
        result_page.shown(ratio),
        str(max(found["order"]["long_waits"] for found in cell.values())),
        str(max(found["order"]["most_passed_over"] for found in cell.values())),
    ]


def median(cell, value):
    return statistics.median(map(value, cell.values()))


def paired(cell, baseline, value):
    """The comparison over the rounds that both have."""
    rounds = sorted(cell.keys() & baseline.keys())
    if not rounds:
        return None
    return statistics_of_pairs.compare(
        [value(cell[number]) for number in rounds], [value(baseline[number]) for number in rounds]
    )


def mixed_part(rows):
    """The fast route beside each slow one."""
    lines = [
        "## Fast requests beside slow ones",
        "",
        f"{mixed.FAST_CONNECTIONS} connections ask for a view without work, every server has"
        f" {mixed.THREADS} threads; slow views take {mixed.SLOW_MICROSECONDS // 1000} ms. Medians"
        " over rounds of the fast route; the ratio is that of its p99 to its p99 alone on the same"
        " server in the same round.",
        "",
    ]
    headings = ("beside", "server", "rounds", "req/s", "p50 ms", "p99 ms", "p99 over alone (pairs)")
    for app in mixed.APPS:
        table = [
            mixed_cells(rows, app, server, scenario)
            for scenario in mixed.SCENARIOS
            for server in mixed.SERVERS
        ]
        lines += [f"### {app}", "", *markdown(headings, table)]
    return lines


def mixed_cells(rows, app, server, scenario):
    cell = mixed.cell(rows, app, server, scenario)
    if not cell:
        return [str(scenario), server, "0", "–", "–", "–", "–"]
    return [
        str(scenario),
        server,
        str(len(cell)),
        f"{median(cell, lambda row: row['requests_per_second']):.0f}",
        *(
            f"{median(cell, lambda row, at=at: row['latency_us'][at]) / 1000:.2f}"
            for at in ("p50", "p99")
        ),
        result_page.shown(mixed.slowdown(rows, app, server, scenario)),
    ]


def wakes_part(rows):
    """What the counters say of a view without work."""
    headings = (
        "arm",
        "connections",
        "rounds",
        "req/s",
        "wakes a request",
        "threads with over 1 %",
        "threads",
        "ring-wait p99 µs",
        "GIL-wait p99 µs",
    )
    cells = {}
    for row in rows:
        cells.setdefault((row["arm"], row["load"]["connections"]), []).append(row)
    return [
        "## Wakes",
        "",
        "A view without work and as many threads as the server takes by itself; counters of the"
        " server's own, over its whole life. The waits are the worst thread's. Medians over rounds.",
        "",
        *markdown(headings, [wake_cells(*place, here) for place, here in cells.items()]),
    ]


def wake_cells(arm, connections, rows):
    """Of all rounds of an arm at a number of connections."""
    figures = [
        [row["client"]["requests_per_second"] for row in rows],
        *zip(*map(wake_figures, rows), strict=True),
    ]
    return [
        arm,
        str(connections),
        str(len(rows)),
        *map(median_shown, figures, ("{:.0f}", "{:.3f}", "{:g}", "{:g}", "{:.0f}", "{:.0f}")),
    ]


def wake_figures(row):
    """What a round's counters say; `None` for each that it lacks."""
    counted = counters_of(row)
    if counted is None:
        return [None] * 5
    waits = [counted.worst(name, "p99") for name in ("ring-wait", "GIL-wait")]
    return [counted.wakes_per_job, counted.busy_threads, len(counted.threads), *waits]


def median_shown(values, form):
    """The median of those that there are."""
    there = [value for value in values if value is not None]
    return form.format(statistics.median(there)) if there else "–"


PINNED = {
    "apart": "the server on CPU 0 alone, the client on CPU 1",
    "none": "server and client on every CPU",
}
# Ours and the peer with as many threads.
SAME_THREADS = (("threads-1", "granian-1"), ("zero-config", "granian-8"))


def throughput_part(runs):
    """The tables of compare.py by pin, and ours over granian's with the same threads."""
    lines = []
    for pin, run in runs.items():
        lines += [f"## What threads cost: {PINNED[pin]}", ""]
        for workload, words in run["workloads"].items():
            for connections in run["settings"]["connections"]:
                lines += result_page.table(run, workload, words, connections)
        lines += against_granian(run)
    return lines


def against_granian(run):
    headings = ("workload", "connections", "arm", "CPU ratio (pairs)", "req/s ratio (pairs)")
    table = [
        [
            workload,
            str(connections),
            f"{ours} / {theirs}",
            *(
                result_page.shown(
                    result_page.pairs(
                        result_page.select(run, workload, connections, ours),
                        result_page.select(run, workload, connections, theirs),
                        field,
                    )
                )
                for field in ("cpu_us_per_request", "requests_per_second")
            ),
        ]
        for workload in run["workloads"]
        for connections in run["settings"]["connections"]
        for ours, theirs in SAME_THREADS
    ]
    return ["### Over granian with the same threads", "", *markdown(headings, table)]


PARTS = {
    "arms": arms_part,
    "order": order_part,
    "mixed": mixed_part,
    "wakes": wakes_part,
    "throughput": throughput_part,
}


def facts(raw):
    """The machine, the versions and the settings of each section."""
    settings = [
        f"- {name}: {chosen['rounds']} rounds, {chosen['seconds']} s a run,"
        f" {chosen['probe_seconds']:.0f} s a probe, {chosen['warm_up']} s warm-up,"
        f" revision {chosen['revision']}"
        for name, chosen in raw["settings"].items()
    ]
    fewest = min((chosen["rounds"] for chosen in raw["settings"].values()), default=0)
    few = statistics_of_pairs.PAIRS_MIN
    note = ["", f"Fewer than {few} rounds: no intervals."] if fewest < few else []
    return [
        "## Machine and settings",
        "",
        *result_page.machine_facts(raw),
        f"- class {raw['machine_class']}",
        *settings,
        *note,
    ]
