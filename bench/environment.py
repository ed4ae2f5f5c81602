"""The virtual environment: peers from PyPI, hoopsnake from this tree or a wheel."""

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

from arms import BENCH

ROOT = BENCH.parent
VENV = ROOT / ".cache" / "bench-venv"
REQUIREMENTS = BENCH / "requirements.txt"
WANTED_PYTHON = (3, 13)
BUILD_SECONDS_MAX = 1800


def prepare(python=None, hoopsnake=None, build=True):
    """Makes it; returns its bin directory, and the hoopsnake command if that is outside it.

    `hoopsnake` is a wheel to install or a command to run; without it this tree is built.
    """
    bin_directory = VENV / "bin"
    interpreter = bin_directory / "python"
    wanted = python or find_python()
    if not interpreter.is_file() or version(interpreter) != version(wanted):
        say(f"making the environment with Python {version(wanted)}")
        subprocess.run([wanted, "-m", "venv", "--clear", str(VENV)], check=True)
    install_peers(interpreter)
    command = None
    if hoopsnake is not None and not hoopsnake.endswith(".whl"):
        _, command = of_command(hoopsnake)
    elif hoopsnake is not None:
        pip(interpreter, "install", "--force-reinstall", "--no-deps", hoopsnake)
    elif build and (ROOT / "pyproject.toml").is_file():
        say("building hoopsnake with the release profile")
        pip(interpreter, "install", "--force-reinstall", "--no-deps", str(ROOT))
    return bin_directory, command


def of_command(hoopsnake):
    """The same for an installed command alone: no environment is made, no peer is there."""
    command = Path(hoopsnake).absolute()
    if not command.is_file():
        sys.exit(f"--hoopsnake {hoopsnake}: no such file; give a wheel or a command")
    return command.parent, command


def install_peers(interpreter):
    """Installs the pinned peers once for each state of the list."""
    stamp = VENV / "requirements.sha256"
    digest = hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()
    if stamp.is_file() and stamp.read_text() == digest:
        return
    say("installing the peers")
    for requirement in requirements():
        # One by one: a peer without a wheel for this machine must not take the others along.
        done = pip(interpreter, "install", "--only-binary", ":all:", requirement, check=False)
        if done.returncode:
            say(f"{requirement} is left out: {last_line(done.stderr)}")
    stamp.write_text(digest)


def requirements():
    lines = (line.strip() for line in REQUIREMENTS.read_text().splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def pip(interpreter, *arguments, check=True):
    command = [str(interpreter), "-m", "pip", *arguments, "-q", "--disable-pip-version-check"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX
    )
    if check and done.returncode:
        sys.exit(f"pip {' '.join(arguments[:1])} failed:\n{done.stderr[-4000:]}")
    return done


def find_python():
    """Python 3.13 if it is here, else the newest."""
    found = [sys.executable]
    found += filter(None, (shutil.which(f"python3.{minor}") for minor in range(10, 15)))
    found += map(str, Path.home().glob(".pyenv/versions/3.*/bin/python"))
    usable = {}
    for candidate in found:
        number = version(candidate)
        if number is not None and number >= (3, 10):
            usable.setdefault(number, candidate)
    if not usable:
        sys.exit("no Python 3.10 or newer is here; name one with --python")
    exact = [number for number in usable if number[:2] == WANTED_PYTHON]
    return usable[max(exact or usable)]


def version(interpreter):
    """Such as (3, 13, 0); `None` if it does not run, as a shim without its version does not."""
    try:
        done = subprocess.run(
            [str(interpreter), "--version"], capture_output=True, text=True, timeout=30
        )
    except OSError:
        return None
    number = re.fullmatch(r"Python (\d+)\.(\d+)\.(\d+)\S*", done.stdout.strip())
    return tuple(map(int, number.groups())) if number and not done.returncode else None


def last_line(text):
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no message"


def say(text):
    print(text, flush=True)
