"""The outcome as tables for a terminal, as CSV and as JSON."""

from __future__ import annotations

import csv
import json
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

from .run import Outcome
from .watch import Sample, slope


def tables(outcome: Outcome) -> str:
    """All of them."""
    plan, ledger = outcome.plan, outcome.ledger
    parts = [
        f"seed {plan.seed}, io {plan.io or 'auto'}, {plan.workers} workers, {plan.seconds:.0f} s, "
        f"HUP every {plan.hup:.0f} s, SIGKILL every {plan.kill:.0f} s (0: never)",
        table("phases", outcome.phases),
        counts("requests by kind, all checked", ledger.requests),
        counts("excused by what the run did", ledger.excused),
        table("kills", kills(outcome)),
        table("levels at rest", levels(outcome)),
        table("RSS by phase and process", slopes(outcome.watch.samples)),
        counts("log lines that the run caused", outcome.log_lines.get("caused", {})),
        counts("warnings", outcome.log_lines.get("warnings", {})),
        counts("unexpected", ledger.unexpected),
        table("the unexpected ones, first 200", ledger.errors),
        f"{sum(ledger.requests.values()):,} requests, {ledger.connections:,} connections, "
        f"{ledger.bytes_checked / 2**20:,.0f} MiB compared; "
        + ", ".join(f"{name} {value}" for name, value in outcome.figures.items()),
        "clean" if outcome.clean else f"FAILED: {sum(ledger.unexpected.values())} unexpected",
    ]
    return "\n\n".join(part for part in parts if part)


def kills(outcome: Outcome) -> list[dict[str, object]]:
    """Each kill, and what it cost."""
    return [
        {
            "seconds": round(kill.moment - outcome.ledger.began, 1),
            "pid": kill.pid,
            "in flight": kill.in_flight,
            "failed": kill.caused,
            "connections not noticed": len(kill.peers),
        }
        for kill in outcome.ledger.kills
    ]


def levels(outcome: Outcome) -> list[dict[str, object]]:
    """First and last, one line each."""
    return [
        {"when": when, "role": level.role, "pid": level.pid, **asdict(level.sizes)}
        for when, found in (("first", outcome.first), ("last", outcome.last))
        for level in found
    ]


def slopes(samples: list[Sample]) -> list[dict[str, object]]:
    """For each phase: the supervisor, and of the workers the one that lived longest in it."""
    rows = []
    for phase in dict.fromkeys(sample.phase for sample in samples):
        for role in ("supervisor", "worker"):
            found: dict[int, list[Sample]] = {}
            for sample in samples:
                if (sample.phase, sample.role) == (phase, role):
                    found.setdefault(sample.pid, []).append(sample)
            if not found:
                continue
            pid, longest = max(found.items(), key=lambda item: len(item[1]))
            per_hour = slope(longest)
            rows.append(
                {
                    "phase": phase,
                    "role": role,
                    "processes": len(found),
                    "pid": pid,
                    "seconds": round(longest[-1].seconds - longest[0].seconds),
                    "first KiB": longest[0].rss,
                    "last KiB": longest[-1].rss,
                    "KiB/h": "-" if per_hour is None else round(per_hour),
                    "descriptors": max(sample.descriptors for sample in longest),
                }
            )
    return rows


def table(title: str, rows: list[dict[str, object]]) -> str:
    """Columns of the rows' keys; empty without rows."""
    if not rows:
        return ""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names, *[[str(row.get(name, "")) for name in names] for row in rows]]
    widths = [max(len(line[at]) for line in cells) for at in range(len(names))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths)) for line in cells]
    return "\n".join([f"== {title}", *lines])


def counts(title: str, found: Mapping[str, int]) -> str:
    """Name and number, most first."""
    ordered = sorted(found.items(), key=lambda item: -item[1])
    return table(title, [{"number": number, "what": name} for name, number in ordered])


def write_json(path: Path, outcome: Outcome) -> None:
    """Everything but the samples, which are the CSV's."""
    ledger = outcome.ledger
    result = {
        "clean": outcome.clean,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "plan": asdict(outcome.plan),
        "phases": outcome.phases,
        "requests": dict(ledger.requests),
        "connections": ledger.connections,
        "bytes_compared": ledger.bytes_checked,
        "excused": dict(ledger.excused),
        "unexpected": dict(ledger.unexpected),
        "errors": ledger.errors,
        "kills": kills(outcome),
        "restarts": [
            round(restart.moment - ledger.began, 1) for restart in ledger.restarts
        ],
        "levels": levels(outcome),
        "rss": slopes(outcome.watch.samples),
        "log": outcome.log_lines,
        **outcome.figures,
    }
    path.write_text(json.dumps(result, indent=1) + "\n")


def write_csv(path: Path, samples: Iterable[Sample]) -> None:
    """A line for each process and sample."""
    rows = [sample.row() for sample in samples]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(Sample.__dataclass_fields__))
        writer.writeheader()
        writer.writerows(rows)
