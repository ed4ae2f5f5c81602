"""Fast requests beside slow ones: what a slow view costs everybody else.

Sixteen connections ask for a view without work. Beside them 0, 1, 2 and 4 connections ask for one
that sleeps or spins 200 ms, and one that hangs holds every thread but one.
"""

import contextlib
import dataclasses
import socket
import subprocess
import time

import arms
import client
import process
import statistics_of_pairs

THREADS = 8
FAST_CONNECTIONS = 16
SLOW_MICROSECONDS = 200_000
SLOW_COUNTS = (1, 2, 4)
SERVERS = ("hoopsnake-uring", "granian", "gunicorn-gthread")
APPS = {"bare": "bare_work:application", "django": "django_hello.wsgi:application"}
# Until the slow requests are inside their views.
SETTLE_SECONDS = 0.5
WARM_UP_SECONDS = 1


@dataclasses.dataclass(frozen=True)
class Scenario:
    """What goes on beside the fast connections."""

    kind: str = "none"
    count: int = 0

    def __str__(self):
        return f"{self.count} × {self.kind}" if self.count else "none"


ALONE = Scenario()
SCENARIOS = (
    ALONE,
    *(Scenario(kind, count) for kind in ("sleep", "spin") for count in SLOW_COUNTS),
    # The last, because the server cannot end its hung threads.
    Scenario("hang", THREADS - 1),
)


class Mixed:
    """Runs every scenario against every server; the servers take turns inside each round."""

    def __init__(self, options, bin_directory, hoopsnake):
        self.options = options
        self.bin_directory = bin_directory
        self.hoopsnake = hoopsnake
        self.environment = arms.environment(bin_directory)
        self.client = client.Checking(options.client_path)

    def rows(self):
        """Every run; one that could not be made says why under "failure"."""
        for round_number in range(1, self.options.rounds + 1):
            for app_name, app in APPS.items():
                for name in SERVERS:
                    place = {"round": round_number, "app": app_name, "server": name}
                    try:
                        for row in self.one_server(name, app):
                            yield place | row
                    except (process.ServerError, client.ClientError) as error:
                        yield place | {"failure": str(error)}

    def one_server(self, name, app):
        """All scenarios on one fresh server."""
        arm = arms.ARMS[name].with_threads(THREADS, name)
        executable = arms.find_executable(arm, self.bin_directory, self.hoopsnake)
        if executable is None:
            raise process.ServerError(f"the command {arm.command} is not installed")
        port = process.free_port()
        command = arm.command_line(executable, app, port)
        with process.Server(command, port, self.environment) as server:
            server.wait_ready(arms.BODY)
            self.client.run(port, FAST_CONNECTIONS, WARM_UP_SECONDS)
            for scenario in SCENARIOS:
                yield self.one_run(server, scenario)
            server.check_alive()
            # Threads that hang for ever are not waited for.
            server.stop(patience=0)

    def one_run(self, server, scenario):
        seconds = self.options.seconds
        with beside(self.client, server.port, scenario, seconds) as answers:
            before = server.cpu()
            load = self.client.run(server.port, FAST_CONNECTIONS, seconds)
            cpu = server.cpu().since(before)
            slow_answers = answers()
        return {
            "beside": str(scenario),
            "requests": load.requests,
            "errors": load.errors,
            "requests_per_second": load.requests_per_second,
            "latency_us": load.latency_us,
            "server_cpu_seconds": cpu.total,
            "client_cpu_seconds": load.client_cpu_seconds,
            "slow_answers": slow_answers,
        }


@contextlib.contextmanager
def beside(load_client, port, scenario, seconds):
    """The slow requests, on their way all the time; yields what waits for the number of answers."""
    if not scenario.count:
        yield lambda: 0
    elif scenario.kind == "hang":
        with contextlib.ExitStack() as stack:
            for _ in range(scenario.count):
                stack.enter_context(asked(port, "/hang/0"))
            time.sleep(SETTLE_SECONDS)
            yield lambda: 0
    else:
        path = f"/{scenario.kind}/{SLOW_MICROSECONDS}"
        limit = ["--seconds", str(seconds + 2 * SETTLE_SECONDS)]
        command = load_client.command(port, scenario.count, limit, path=path)
        # A starved one may be late: it is the fast route that is measured.
        command += ["--timeout", str(client.PROBE_TIMEOUT_SECONDS)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            time.sleep(SETTLE_SECONDS)
            yield lambda: answers_of(child)
        finally:
            child.kill()
            child.wait()


def answers_of(child):
    """How many right answers the slow connections got."""
    text, _ = child.communicate(timeout=2 * client.PROBE_TIMEOUT_SECONDS)
    words = text.split()
    if words[:1] != ["requests"]:
        raise client.ClientError(f"the slow client printed no result: {text}")
    return int(words[1])


@contextlib.contextmanager
def asked(port, path):
    """A connection whose request will never be answered."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        yield


def cell(rows, app, server, scenario):
    """The runs of one cell, by round."""
    wanted = (app, server, str(scenario))
    return {
        row["round"]: row
        for row in rows
        if "failure" not in row and (row["app"], row["server"], row["beside"]) == wanted
    }


def slowdown(rows, app, server, scenario):
    """The fast route's p99 over its p99 alone, in the same round and on the same server."""
    runs, alone = cell(rows, app, server, scenario), cell(rows, app, server, ALONE)
    rounds = sorted(runs.keys() & alone.keys())
    return statistics_of_pairs.compare(
        [runs[number]["latency_us"]["p99"] for number in rounds],
        [alone[number]["latency_us"]["p99"] for number in rounds],
    )
