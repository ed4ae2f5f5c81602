"""Starts a balancer with the configuration that the documentation shows, on ports of its own."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "deployment.md"
DEMANDED = os.environ.get("BALANCERS") == "all"
# nginx, HAProxy and Envoy, Caddy.
FAULT = re.compile(r"\[(error|crit|alert|emerg|ALERT|critical)\]|\"level\":\"error\"")
SECONDS_TO_START = 20.0
SECONDS_TO_STOP = 5.0


@dataclass(frozen=True)
class Paths:
    """Where a balancer listens, where it sends to, and where it may write."""

    folder: Path
    port: int
    tls_port: int
    backend: int
    certificate: Path | None


def documented(section: str) -> str:
    """The first block of that section of docs/deployment.md."""
    text = DOCUMENT.read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    found = re.search(r"```\w*\n(.*?)```", text, re.S)
    assert found, f"docs/deployment.md shows no configuration of {section}"
    return found[1]


def adapted(section: str, *changes: tuple[str, str]) -> str:
    """The same with other addresses. Each old one must be there: else something else is tested."""
    text = documented(section)
    for old, new in changes:
        assert old in text, f"docs/deployment.md, {section}: {old!r} is not there"
        text = text.replace(old, new)
    return text


def find(name: str) -> str | None:
    """The command on PATH, or in BALANCERS_BIN."""
    return shutil.which(name) or shutil.which(name, path=os.environ.get("BALANCERS_BIN", ""))


def nginx(paths: Paths) -> list[str]:
    listen = f"listen 127.0.0.1:{paths.port};"
    if paths.certificate:
        listen += f" listen 127.0.0.1:{paths.tls_port} ssl; ssl_certificate {paths.certificate};"
        listen += f" ssl_certificate_key {paths.certificate};"
    server = adapted(
        "nginx",
        ("listen 443 ssl;", listen),
        ("server 127.0.0.1:8000;", f"server 127.0.0.1:{paths.backend};"),
    )
    temporary = "\n".join(
        f"{kind}_temp_path {paths.folder}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    file = paths.folder / "nginx.conf"
    file.write_text(
        # Started as root its workers become nobody, who may not write to the test's folder.
        f"{'user root; ' if os.getuid() == 0 else ''}daemon off; worker_processes 1; pid {paths.folder}/pid; error_log stderr warn;\n"
        f"events {{ worker_connections 1024; }}\n"
        f"http {{ access_log off; {temporary}\n{server}}}\n"
    )
    return ["nginx", "-p", str(paths.folder), "-e", "stderr", "-c", str(file)]


def haproxy(paths: Paths) -> list[str]:
    bind = f"bind 127.0.0.1:{paths.port}"
    if paths.certificate:
        bind += f"\n    bind 127.0.0.1:{paths.tls_port} ssl crt {paths.certificate}"
    file = paths.folder / "haproxy.cfg"
    file.write_text(
        adapted(
            "HAProxy",
            ("bind :443 ssl crt /etc/haproxy/site.pem", bind),
            ("127.0.0.1:8000", f"127.0.0.1:{paths.backend}"),
        )
    )
    return ["haproxy", "-db", "-f", str(file)]


def envoy(paths: Paths) -> list[str]:
    file = paths.folder / "envoy.yaml"
    file.write_text(
        adapted(
            "Envoy",
            ("address: 0.0.0.0, port_value: 8080", f"address: 127.0.0.1, port_value: {paths.port}"),
            ("port_value: 8000", f"port_value: {paths.backend}"),
        )
    )
    flags = ["--concurrency", "1", "--disable-hot-restart", "-l", "error"]
    return ["envoy", "-c", str(file), *flags]


def caddy(paths: Paths) -> list[str]:
    file = paths.folder / "Caddyfile"
    site = adapted(
        "Caddy",
        ("www.example.com {", f"http://:{paths.port} {{\n\tbind 127.0.0.1"),
        ("127.0.0.1:8000", f"127.0.0.1:{paths.backend}"),
    )
    file.write_text("{\n\tadmin off\n\tauto_https off\n}\n" + site)
    return ["caddy", "run", "--config", str(file), "--adapter", "caddyfile"]


KINDS: dict[str, Callable[[Paths], list[str]]] = {
    "nginx": nginx,
    "haproxy": haproxy,
    "envoy": envoy,
    "caddy": caddy,
}
# Whose TLS is tested: the configuration of the others would be more than the documentation's.
WITH_TLS = ("nginx", "haproxy")


class Front:
    """A running balancer before a server on this machine. A context manager."""

    def __init__(self, kind: str, backend: int, folder: Path) -> None:
        self.kind = kind
        certificate = make_certificate(folder) if kind in WITH_TLS else None
        paths = Paths(folder, free_port(), free_port(), backend, certificate)
        self.port = paths.port
        self.tls_port = paths.tls_port if certificate else 0
        name, *words = KINDS[kind](paths)
        command = find(name)
        assert command, f"{name} is not installed"
        self._log = folder / "log"
        home = {name: str(folder) for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [command, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **home},
            )
        try:
            self._wait_until_it_listens()
        except BaseException:
            self.stop()
            raise

    def _wait_until_it_listens(self) -> None:
        deadline = time.monotonic() + SECONDS_TO_START
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                time.sleep(0.05)
        raise AssertionError(f"{self.kind} does not listen:\n{self.log()}")

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def complaints(self) -> list[str]:
        """Lines in which it finds fault with the server."""
        lines = [line for line in self.log().splitlines() if FAULT.search(line)]
        # Caddy calls it an error when its own client leaves in the middle.
        return [line for line in lines if "aborting with incomplete response" not in line]

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> Front:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def make_certificate(folder: Path) -> Path | None:
    """Key and certificate in one file; None without openssl."""
    if not shutil.which("openssl"):
        return None
    key, file, both = folder / "key.pem", folder / "cert.pem", folder / "both.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    command += ["-subj", "/CN=localhost", "-keyout", str(key), "-out", str(file)]
    subprocess.run(command, check=True, capture_output=True)
    both.write_text(file.read_text() + key.read_text())
    return both


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]
