"""The servers that are compared, and the applications they serve."""

import dataclasses
import os
import shutil
import subprocess
from pathlib import Path

BENCH = Path(__file__).resolve().parent
APPS = BENCH / "apps"
BODY = b"Hello, world!"
DEMO = BENCH.parent / "examples" / "django_demo"
DEMO_DATABASE = BENCH.parent / ".cache" / "bench-demo.sqlite3"


@dataclasses.dataclass(frozen=True)
class Arm:
    """One server with one worker process, no access log, and by default one thread for views."""

    name: str
    distribution: str
    command: str
    options: tuple
    threads_option: str = "--threads"
    # `None` leaves the number to the server.
    threads: int | None = 1
    # What the server's environment says; an empty one is what it does by itself.
    variables: tuple = ()

    def command_line(self, executable, app, port, directory=APPS):
        return [str(executable), *self._words({"app": app, "port": port, "apps": directory})]

    def shown(self, app):
        """The command line for a result file: no path and no port of this machine."""
        variables = [f"{name}={value}" for name, value in self.variables]
        words = self._words({"app": app, "port": "PORT", "apps": "DIRECTORY"})
        return " ".join([*variables, self.command, *words])

    def with_threads(self, threads, name=None, variables=()):
        """The same server with another number of threads, and with these variables."""
        number = "auto" if threads is None else threads
        return dataclasses.replace(
            self,
            name=name or f"{self.name}-{number}",
            threads=threads,
            variables=tuple(variables),
        )

    def _words(self, values):
        threads = () if self.threads is None else (self.threads_option, str(self.threads))
        return [*(option.format(**values) for option in self.options), *threads]


def hoopsnake(io):
    options = f"serve {{app}} --bind 127.0.0.1:{{port}} --io {io} --workers 1"
    return Arm(
        f"hoopsnake-{io}", "hoopsnake", "hoopsnake", (*options.split(), "--app-dir", "{apps}")
    )


def gunicorn(worker_class, *more):
    options = f"-k {worker_class} --workers 1 --bind 127.0.0.1:{{port}}"
    fixed = ("--no-control-socket", "--log-level", "warning", "--chdir", "{apps}", "{app}")
    return Arm(
        f"gunicorn-{worker_class}", "gunicorn", "gunicorn", (*options.split(), *more, *fixed)
    )


ARMS = {
    arm.name: arm
    for arm in (
        hoopsnake("uring"),
        hoopsnake("epoll"),
        Arm(
            "granian",
            "granian",
            "granian",
            (
                *"--interface wsgi --http 1 --no-ws --workers 1".split(),
                *"--host 127.0.0.1 --port {port} --no-access-log --log-level warning".split(),
                *("--working-dir", "{apps}", "{app}"),
            ),
            "--blocking-threads",
        ),
        gunicorn("gthread", "--keep-alive", "75"),
        # Closes after each response, so it also pays for a connection a request: not a default arm.
        gunicorn("sync"),
        Arm(
            "m0serve",
            "m0serve",
            "m0serve",
            (
                *"--host 127.0.0.1 --port {port} --workers 1".split(),
                # Its default closes each connection after 1000 requests.
                *"--protocol wsgi --max-keepalive-requests 0 --app-dir {apps} {app}".split(),
            ),
            "--blocking-threads",
        ),
    )
}
DEFAULT_ARMS = ("hoopsnake-uring", "hoopsnake-epoll", "granian", "gunicorn-gthread", "m0serve")
BASELINE = "granian"

# What a browser behind a proxy sends, in number and size.
TEN_HEADERS = (
    ("Accept", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"),
    ("Accept-Encoding", "gzip, deflate, br, zstd"),
    ("Accept-Language", "en-GB,en;q=0.7,de;q=0.3"),
    ("Cache-Control", "no-cache"),
    ("Cookie", "sessionid=r3kq0m5v7x1c9b2n4l6j8h0g; csrftoken=Zq8mV4nT2cX6bL0k"),
    ("Referer", "https://www.example.org/articles/2024/05/a-page"),
    ("User-Agent", "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0"),
    ("X-Forwarded-For", "203.0.113.7"),
    ("X-Forwarded-Proto", "https"),
    ("X-Request-ID", "6f1c2a90-7b3e-4d58-9a41-0c5e8f2d7b16"),
)


@dataclasses.dataclass(frozen=True)
class Workload:
    """An application and the requests sent to it; every answer is 200 and holds `expected`."""

    name: str
    app: str
    headers: tuple
    words: str
    directory: Path = APPS
    expected: bytes = BODY
    # The whole body is `expected`, so that the checking client can compare it.
    is_whole: bool = True
    # What the application's own environment is told; its database is made by `prepare_demo`.
    variables: tuple = ()
    path: str = "/"


def bare_work(path):
    """A bare view that does what its path names, such as /spin/650; see apps/work.py."""
    name = path.strip("/").replace("/", "-") or "no-work"
    return Workload(name, "bare_work:application", (), f"a bare view, {path}", path=path)


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("bare", "bare:application", (), "bare WSGI application"),
        Workload("headers", "bare:application", TEN_HEADERS, "the same, ten request headers"),
        Workload("django", "django_hello.wsgi:application", (), "Django view, CommonMiddleware"),
        Workload(
            "demo",
            "demo.wsgi:application",
            TEN_HEADERS,
            "the demo's front page: ORM, sessions, templates",
            directory=DEMO,
            expected=b"<title>",
            is_whole=False,
            variables=(("DEMO_DATABASE", str(DEMO_DATABASE)), ("DEMO_DEBUG", "0")),
        ),
        *(bare_work(f"/spin/{microseconds}") for microseconds in (35, 300, 650)),
    )
}


def environment(bin_directory):
    """The servers' environment: the venv first, and nothing that would configure a server."""
    foreign = (
        "GRANIAN_",
        "GUNICORN_",
        "HOOPSNAKE_",
        "M0_",
        "UVICORN_",
        "DJANGO_",
        "PYTHON",
        "WEB_",
    )
    kept = {name: text for name, text in os.environ.items() if not name.startswith(foreign)}
    kept["PATH"] = f"{bin_directory}{os.pathsep}{kept.get('PATH', '')}"
    kept["VIRTUAL_ENV"] = str(Path(bin_directory).parent)
    kept["PYTHONDONTWRITEBYTECODE"] = "1"
    return kept


def prepare_demo(interpreter, variables):
    """Makes the demo's database anew, outside the tree."""
    for suffix in ("", "-wal", "-shm"):
        Path(f"{DEMO_DATABASE}{suffix}").unlink(missing_ok=True)
    DEMO_DATABASE.parent.mkdir(exist_ok=True)
    for words in (("migrate", "--noinput"), ("demo_data",)):
        command = [str(interpreter), str(DEMO / "manage.py"), *words]
        subprocess.run(command, env=variables, check=True, stdout=subprocess.DEVNULL)


def find_executable(arm, bin_directory, hoopsnake_command=None):
    """Where the arm's command is; `None` if it is not installed."""
    if arm.distribution == "hoopsnake" and hoopsnake_command is not None:
        return hoopsnake_command
    found = shutil.which(arm.command, path=str(bin_directory))
    return Path(found) if found else None
