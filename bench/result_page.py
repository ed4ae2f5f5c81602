"""A result as a Markdown page: tables of medians, ratios, machine facts, failures."""

import statistics

import statistics_of_pairs

PACKAGES_SHOWN = ("hoopsnake", "granian", "gunicorn", "uvicorn", "m0serve", "Django")


def render(run):
    lines = [f"# Comparison of {run['date']}", ""]
    lines += [
        "Server CPU a request is user and system time of the server's whole process tree over the"
        " measured run, divided by the requests answered. Medians over rounds; the ratio is to"
        f" {run['settings']['baseline']} in the same round. How to read it: bench/README.md.",
        "",
    ]
    lines += failures(run)
    for workload, words in run["workloads"].items():
        for connections in run["settings"]["connections"]:
            lines += table(run, workload, words, connections)
    return "\n".join(lines + facts(run)) + "\n"


def failures(run):
    texts = [f"- skipped: {name}: {reason}" for name, reason in run["skipped"].items()]
    texts += [f"- failed: {' '.join(text.split())}" for text in run["failures"]]
    texts += [
        f"- errors: round {entry['round']} {entry['workload']} {entry['arm']}"
        f" c={entry['connections']}: {entry['errors']}"
        for entry in run["runs"]
        if entry["errors"]
    ]
    return [*texts, ""] if texts else []


def select(run, workload, connections, arm):
    """The runs of one cell, by round."""
    wanted = (workload, connections, arm)
    return {
        entry["round"]: entry
        for entry in run["runs"]
        if (entry["workload"], entry["connections"], entry["arm"]) == wanted
    }


def median(cell, field):
    return statistics.median(entry[field] for entry in cell.values())


def pairs(cell, baseline, field):
    """The comparison over the rounds that both have."""
    rounds = sorted(cell.keys() & baseline.keys())
    if not rounds:
        return None
    return statistics_of_pairs.compare(
        [cell[number][field] for number in rounds], [baseline[number][field] for number in rounds]
    )


def table(run, workload, words, connections):
    baseline_name = run["settings"]["baseline"]
    baseline = select(run, workload, connections, baseline_name)
    rate = run["rates"].get(f"{workload} {connections}", run["settings"]["rate"])
    at_rate = f", open loop at {rate} req/s" if rate else ""
    lines = [
        f"## {workload}: {words}, {connections} connections{at_rate}",
        "",
        "| arm | req/s | CPU µs/request | user | system | CPU ratio (medians) | CPU ratio (pairs)"
        " | req/s ratio (pairs) | p50 µs | p99 µs | RSS MiB | client busy |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for arm in run["arms"]:
        cell = select(run, workload, connections, arm)
        if not cell:
            lines.append(f"| {arm} | no run |" + " |" * 10)
            continue
        cpu = pairs(cell, baseline, "cpu_us_per_request")
        speed = pairs(cell, baseline, "requests_per_second")
        columns = [
            arm,
            f"{median(cell, 'requests_per_second'):.0f}",
            f"{median(cell, 'cpu_us_per_request'):.2f}",
            f"{median(cell, 'cpu_user_us_per_request'):.2f}",
            f"{median(cell, 'cpu_system_us_per_request'):.2f}",
            f"{cpu['ratio_of_medians']:.3f}" if cpu else "–",
            shown(cpu),
            shown(speed),
            latency(cell, "p50"),
            latency(cell, "p99"),
            f"{median(cell, 'rss_mib'):.1f}",
            f"{median(cell, 'client_busy'):.0%}",
        ]
        lines.append(f"| {' | '.join(columns)} |")
    return [*lines, ""]


def shown(ratio):
    if ratio is None:
        return "–"
    if ratio["interval_95"] is None:
        return f"{ratio['median_of_ratios']:.3f}"
    low, high = ratio["interval_95"]
    return f"{ratio['median_of_ratios']:.3f} [{low:.3f}, {high:.3f}]"


def latency(cell, name):
    values = [entry["latency_us"][name] for entry in cell.values()]
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.0f}" if known else "–"


def machine_facts(run):
    """The machine and the versions, in lines that hold no path."""
    machine = run["machine"]
    packages = {name.lower(): version for name, version in run["packages"].items()}
    shown_packages = ", ".join(
        f"{name} {packages[name.lower()]}" for name in PACKAGES_SHOWN if name.lower() in packages
    )
    return [
        f"- kernel {machine['kernel']}, {machine['architecture']}, {machine['cpu_model']},"
        f" {machine['cpus']} CPUs{' of a virtual machine' if machine['virtual'] else ''},"
        f" {machine['memory_mib']} MiB, {machine['libc']}",
        f"- io_uring_disabled: {machine['io_uring_disabled']};"
        f" load average at start {machine['load_average_at_start']:.2f}",
        f"- Python {run['python']} ({run['compiler']}); {shown_packages}",
        f"- hoopsnake revision {machine['revision']}",
    ]


def facts(run):
    settings = run["settings"]
    pinned = {"apart": "server on CPU 0, client on CPU 1", "none": "not pinned"}[settings["pin"]]
    lines = [
        "## Machine and settings",
        "",
        *machine_facts(run),
        f"- client {run['client']['name']} {run['client']['version']}; {pinned};"
        f" {settings['rounds']} rounds, {settings['seconds']} s a run,"
        f" {settings['warm_up']} s warm-up, a fresh server for each arm, workload and round",
        f"- `{run['invocation']}`; APP below: {', '.join(sorted(set(run['apps'].values())))}",
        "",
        "```text",
        *run["arms"].values(),
        "```",
    ]
    if settings["rounds"] < statistics_of_pairs.PAIRS_MIN:
        lines += ["", f"Fewer than {statistics_of_pairs.PAIRS_MIN} rounds: no intervals."]
    return lines
