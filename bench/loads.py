"""The loads of the probe: the default one, and those at which each arm differs on a machine.

Which load starves a pool without its rules depends on the machine (how much of a slice a request
takes, and how soon a woken thread runs). `probe.py sweep` tries many and keeps what it saw in
`machines/<class>.json`; `probe.py` runs its arms there.
"""

import dataclasses
import json

import machine
from arms import BENCH

DIRECTORY = BENCH / "machines"
SWEPT_THREADS = [3, 5, 6, 7, 8]
SWEPT_MICROSECONDS = [220, 300, 450, 650]


@dataclasses.dataclass(frozen=True)
class Load:
    """What a server is given to do, and how."""

    threads: int | None
    microseconds: int
    policy: str = "normal"
    # A list of taskset; `None` is every CPU.
    cpus: str | None = None
    connections: int = 20

    @property
    def path(self):
        return f"/spin/{self.microseconds}" if self.microseconds else "/"

    def under(self, policy):
        return dataclasses.replace(self, policy=policy)

    def __str__(self):
        cpus = f", CPUs {self.cpus}" if self.cpus else ""
        threads = "auto" if self.threads is None else self.threads
        return f"{threads} threads, {self.microseconds} µs, {self.policy}{cpus}"


# A view of 0.65 ms makes two jobs a slice on every machine that spends under 0.35 ms of its own on
# a request. With five threads each slice's one drop leaves two of four waiters out; with four it
# reaches all three.
DEFAULT = Load(threads=5, microseconds=650)
CONTROL = Load(threads=4, microseconds=650)


def candidates(options):
    """Every load of a sweep."""
    for threads in options.threads:
        for microseconds in options.views:
            for policy in options.policies:
                for cpus in options.cpus:
                    yield Load(threads, microseconds, policy, None if cpus == "all" else cpus)


def figures(row):
    """What a sweep keeps of a run."""
    found, counted = row["client"], row["counters"]
    return {
        "requests": found["requests"],
        "long_waits": found["order"]["long_waits"],
        "most_passed_over": found["order"]["most_passed_over"],
        "in_order": found["order"]["in_order"],
        "gil_share_ms": found["gil_share_ms"],
        "p99_us": found["latency_us"]["p99"],
        "kept": counted.kept if counted else None,
        "in_slice_drops": counted.in_slice_drops if counted else None,
        "yields": counted.yields if counted else None,
    }


def line(entry):
    """An entry of the table in one line."""
    load = Load(**entry["load"])
    parts = [f"{name} {waits(entry[name])}" for name in trials(entry)]
    problems = f" PROBLEMS {entry['problems']}" if entry["problems"] else ""
    return f"{load}: {'; '.join(parts)}{problems}"


def table_lines(table):
    """The table of a sweep as lines of words: long waits and the most passed over of each run."""
    names = list(trials(table[0]))
    yield ["load", *names, "separates"]
    for entry in table:
        separated = [name for name in names if margin(entry, name) is not None]
        yield [
            str(Load(**entry["load"])),
            *(waits(entry[name]) for name in names),
            ", ".join(separated) or "–",
        ]


def trials(entry):
    return [name for name in entry if name not in ("load", "problems")]


def waits(runs):
    return " ".join(f"{run['long_waits']}/{run['most_passed_over']}" for run in runs)


def margin(entry, name):
    """How far over the bounds the least starved run of an arm was; `None` if it does not separate.

    A load separates an arm when every run of it was out of order and every fair one in order.
    """
    runs, fair = entry[name], entry["fair"]
    if entry["problems"] or name == "fair" or not all(run["in_order"] for run in fair):
        return None
    if any(run["in_order"] for run in runs):
        return None
    # The verdict's own bounds: five long waits, a thousand passed over.
    return min(max(run["long_waits"] / 5, run["most_passed_over"] / 1000) for run in runs)


@dataclasses.dataclass
class Known:
    """What is known of a machine's class."""

    machine_class: str
    # By arm; `None` where no load of the sweep separates it.
    loads: dict
    table: list

    @classmethod
    def of_this_machine(cls, directory=DIRECTORY):
        name = machine.class_name()
        path = directory / f"{name}.json"
        return cls.of_file(path) if path.is_file() else cls(name, {}, [])

    @classmethod
    def of_file(cls, path):
        text = json.loads(path.read_text())
        kept = {arm: load and Load(**load) for arm, load in text["loads"].items()}
        return cls(path.stem, kept, text["table"])

    @classmethod
    def from_table(cls, table, names):
        return cls(machine.class_name(), {name: best(table, name) for name in names}, table)

    def loads_of(self, name):
        """Where the arm differs; none if that is not known."""
        load = self.loads.get(name)
        return [load] if load else []

    def why_unseparated(self, name):
        """Why there is no load at which this arm must be out of order."""
        if name in self.loads:
            return "no load of this machine's sweep separates it"
        return "no sweep of this machine is kept"

    def words(self):
        if not self.table:
            return f"machine class {self.machine_class}: no sweep is kept, the default load is used"
        parts = [
            f"{name} differs at {load}" if load else f"{name} differs at no load of the sweep"
            for name, load in self.loads.items()
        ]
        return f"machine class {self.machine_class}: {'; '.join(parts)}"

    def write(self, directory, facts):
        """Returns the path of the machine's file."""
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{self.machine_class}.json"
        kept = {name: load and dataclasses.asdict(load) for name, load in self.loads.items()}
        head = json.dumps({"date": machine.today(), "machine": facts, "loads": kept}, indent=1)
        # A line for each load: the file is read, and compared, by people.
        lines = ",\n  ".join(json.dumps(entry) for entry in self.table)
        path.write_text(f'{head.rstrip("}").rstrip()},\n "table": [\n  {lines}\n ]\n}}\n')
        return path


def best(table, name):
    """The load with the widest margin; the normal policy and all CPUs where two are equal."""
    separating = [(margin(entry, name), Load(**entry["load"])) for entry in table]
    separating = [(width, load) for width, load in separating if width is not None]
    if not separating:
        return None
    rank = {"normal": 1, "batch": 0}
    return max(separating, key=lambda pair: (pair[0], rank[pair[1].policy], not pair[1].cpus))[1]
