"""Facts about the machine and the versions, for a result file: no host name, no path."""

import datetime
import json
import os
import platform
import re
import subprocess
from pathlib import Path

from arms import BENCH


def today():
    return datetime.date.today().isoformat()


def tag():
    """Such as linux-6.18-2cpu."""
    version = re.match(r"\d+\.\d+", platform.release())
    return f"linux-{version[0] if version else 'unknown'}-{os.cpu_count()}cpu"


def class_name():
    """Machines that starve alike, such as 2cpu-genuineintel-6-linux-6: CPUs, their family, kernel."""
    text = read("/proc/cpuinfo") or ""
    vendor = cpu_field(text, "vendor_id", "CPU implementer") or platform.machine()
    family = cpu_field(text, "cpu family", "CPU architecture") or "unknown"
    words = (f"{os.cpu_count()}cpu", vendor, family, "linux", platform.release().split(".")[0])
    return re.sub(r"[^a-z0-9-]", "", "-".join(words).lower())


def cpu_field(text, *names):
    """The first of these fields of /proc/cpuinfo that is there: x86 and Arm name them apart."""
    for name in names:
        found = re.search(rf"^{name}\s*:\s*(\S+)", text, re.MULTILINE)
        if found:
            return found[1]
    return None


def facts():
    return {
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "cpu_model": cpu_model(),
        "cpus": os.cpu_count(),
        "memory_mib": memory_mib(),
        "virtual": virtual(),
        "libc": " ".join(platform.libc_ver()),
        "io_uring_disabled": read("/proc/sys/kernel/io_uring_disabled") or "no such switch",
        "load_average_at_start": os.getloadavg()[0],
        "revision": revision(),
    }


def cpu_model():
    text = read("/proc/cpuinfo") or ""
    found = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or "unknown"


def memory_mib():
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20


def virtual():
    return " hypervisor" in (read("/proc/cpuinfo") or "")


def revision():
    """The commit that was measured, and whether the tree differed from it."""
    hash_ = git("rev-parse", "--short=12", "HEAD")
    changed = git("status", "--porcelain", "--untracked-files=no")
    return f"{hash_ or 'unknown'}{' with changes' if changed else ''}"


def git(*arguments):
    try:
        done = subprocess.run(["git", *arguments], cwd=BENCH, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip()


def read(path):
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def versions(python):
    """Python and the distributions installed beside it."""
    script = (
        "import importlib.metadata as m, json, platform, sys;"
        "print(json.dumps({'python': platform.python_version(), 'compiler':"
        " platform.python_compiler(), 'packages': {d.metadata['Name']: d.version"
        " for d in m.distributions()}}))"
    )
    done = subprocess.run([python, "-c", script], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)
