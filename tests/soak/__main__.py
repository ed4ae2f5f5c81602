"""`make soak`: see the package's first lines."""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))

from soak.report import tables, write_csv, write_json  # noqa: E402
from soak.run import Plan, soak  # noqa: E402


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m soak", description="An hour of everything.")
    add = parser.add_argument
    add("--seconds", type=float, default=3600, help="of load, without the warm-up")
    add("--io", choices=["uring", "epoll"], help="default: the server's own choice")
    add("--seed", type=int, help="repeats the order of each actor; printed")
    add("--workers", type=int, default=2)
    add("--hup", type=float, default=60, help="seconds between two HUPs, 0: none")
    add("--kill", type=float, default=120, help="seconds between two SIGKILLs, 0: none")
    add("--fast", type=int, default=32, help="actors that send one request after another")
    add("--slow", type=int, default=16, help="actors that read and write slowly")
    add("--rude", type=int, default=4, help="actors that leave in the middle")
    add("--import-seconds", type=float, default=0, help="what the application's import takes")
    add("--out", type=Path, help="a folder for soak.json and soak.csv")
    add("flags", nargs="*", help="more flags of the server, after --")
    return parser.parse_args()


def main() -> int:
    options = parse()
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    plan = Plan(
        seconds=options.seconds,
        seed=seed,
        io=options.io,
        workers=options.workers,
        hup=options.hup,
        kill=options.kill,
        fast=options.fast,
        slow=options.slow,
        rude=options.rude,
        server_flags=tuple(options.flags),
        progress=True,
        environment={"SOAK_IMPORT_SECONDS": str(options.import_seconds)},
    )
    print(f"soak: {plan.seconds:.0f} s, seed {seed}, io {plan.io or 'auto'}", flush=True)
    outcome = soak(plan)
    print(tables(outcome), flush=True)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        write_json(options.out / "soak.json", outcome)
        write_csv(options.out / "soak.csv", outcome.watch.samples)
    return 0 if outcome.clean else 1


if __name__ == "__main__":
    sys.exit(main())
