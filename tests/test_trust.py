"""Whom to trust: `--trusted-proxies`, `--trusted-fields` (PRODUCTION, row "trust", behaviour 4), and
X-Request-ID by RULES.md 27."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
from contextlib import closing

import pytest
from conformance.wire import OUR_FAULT, request
from harness import COMMAND, TESTS, Server, wait_until

PROXIES = "127.0.0.1,::1,unix,10.0.0.0/8"
FOR, PROTO, HOST, PORT = (f"X-Forwarded-{name}: " for name in ("For", "Proto", "Host", "Port"))


@pytest.fixture(scope="module")
def site(io_kind, tmp_path_factory):
    """A server on TCP and on a unix socket (`path`) that trusts PROXIES."""
    path = tmp_path_factory.mktemp("trust") / "http.sock"
    with Server("behaviour_echo:app", "--bind", f"unix:{path}", "--trusted-proxies", PROXIES,
                io=io_kind) as running:
        running.path = str(path)
        yield running
        assert not OUR_FAULT.search(running.log()), running.log()


def over_tcp(server, source="127.0.0.1"):
    return socket.create_connection(("127.0.0.1", server.port), 10, source_address=(source, 0))


def over_unix(server):
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(10)
    connection.connect(server.path)
    return connection


def answer_to(connection, data):
    """Status, head and body of one response, which has a length."""
    connection.sendall(data)
    received = b""
    while b"\r\n\r\n" not in received:
        piece = connection.recv(65536)
        assert piece, received
        received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    length = int(re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)[1])
    while len(body) < length:
        piece = connection.recv(65536)
        assert piece, received
        body += piece
    return int(head.split()[1]), head.decode("latin-1"), body


def environ_over(connection, *fields):
    """What the application was given."""
    with closing(connection):
        status, _, body = answer_to(connection, request("GET", "/echo", *fields))
    assert status == 200
    return json.loads(body)["environ"]


def told(environ):
    """The part of the environ that proxies may change."""
    return (environ["REMOTE_ADDR"], environ["REMOTE_PORT"], environ["wsgi.url_scheme"],
            environ["HTTP_HOST"], environ["SERVER_PORT"])


# Fields, then REMOTE_ADDR, REMOTE_PORT, scheme, HTTP_HOST and SERVER_PORT; None: the connection's own.
NOTHING = (None, None, "http", "a.example", None)
CASES = [
    ([FOR + "1.2.3.4"], ("1.2.3.4", "0", "http", "a.example", None)),
    ([FOR + "6.6.6.6, 1.2.3.4"], ("1.2.3.4", "0", "http", "a.example", None)),
    ([FOR + "6.6.6.6, 1.2.3.4, 10.0.0.1"], ("1.2.3.4", "0", "http", "a.example", None)),
    ([FOR + "6.6.6.6", FOR + "1.2.3.4", FOR + "10.9.9.9, 127.0.0.1"],
     ("1.2.3.4", "0", "http", "a.example", None)),
    ([FOR + "10.0.0.2, 10.0.0.1"], ("10.0.0.2", "0", "http", "a.example", None)),
    ([FOR + "1.2.3.4:567"], ("1.2.3.4", "567", "http", "a.example", None)),
    ([FOR + "[2001:db8::7]:567, ::1"], ("2001:db8::7", "567", "http", "a.example", None)),
    ([FOR + "::ffff:1.2.3.4"], ("1.2.3.4", "0", "http", "a.example", None)),
    ([FOR + "6.6.6.6, unknown"], NOTHING),
    ([FOR + "6.6.6.6, _hidden, 10.0.0.1"], ("10.0.0.1", "0", "http", "a.example", None)),
    ([FOR + "6.6.6.6, "], NOTHING),
    ([FOR + "6.6.6.6, \xff\xfe"], NOTHING),
    ([PROTO + "https"], (None, None, "https", "a.example", "443")),
    ([PROTO + "WSS"], (None, None, "https", "a.example", "443")),
    ([PROTO + "http, https"], (None, None, "https", "a.example", "443")),
    ([PROTO + "https, http"], (None, None, "http", "a.example", "80")),
    ([PROTO + "gopher"], NOTHING),
    ([HOST + "public.example"], (None, None, "http", "public.example", None)),
    ([HOST + "evil, public.example:8443", PROTO + "https"],
     (None, None, "https", "public.example:8443", "8443")),
    ([HOST + "a/b"], NOTHING),
    ([HOST + "u@evil"], NOTHING),
    ([HOST], NOTHING),
    ([PORT + "8443", PROTO + "https"], (None, None, "https", "a.example", "8443")),
    ([PORT + "0"], NOTHING),
    ([PORT + "65536"], NOTHING),
    (["Forwarded: for=6.6.6.6;proto=http, FOR=\"1.2.3.4:5\";Proto=https;host=public.example"],
     ("1.2.3.4", "5", "https", "public.example", "443")),
    (["Forwarded: for=1.2.3.4;proto=https;host=b, for=10.0.0.1;proto=http"],
     ("1.2.3.4", "0", "https", "b", "443")),
    (["Forwarded: for=6.6.6.6", "Forwarded: for=\"[2001:db8::7]\";proto=https"],
     ("2001:db8::7", "0", "https", "a.example", "443")),
    (["Forwarded: for=6.6.6.6;proto=https;host=\"evil"], NOTHING),
    (["Forwarded: for=6.6.6.6;proto=https;host=evil", FOR + "1.2.3.4"],
     ("1.2.3.4", "0", "http", "a.example", None)),
    (["Forwarded: for=6.6.6.6;proto=https;host=evil", PROTO + "gopher"], NOTHING),
]


@pytest.mark.parametrize("transport", ["tcp", "unix"])
@pytest.mark.parametrize(("fields", "expected"), CASES, ids=[" / ".join(f) for f, _ in CASES])
def test_what_trusted_proxies_tell_is_what_the_application_sees(site, transport, fields, expected):
    connection = over_tcp(site) if transport == "tcp" else over_unix(site)
    own = ("", "") if transport == "unix" else tuple(map(str, connection.getsockname()))
    environ = environ_over(connection, *fields)
    plain = environ_over(over_tcp(site) if transport == "tcp" else over_unix(site))
    connections_own = (*own, "http", "a.example", plain["SERVER_PORT"])
    wanted = tuple(told if told is not None else have
                   for told, have in zip(expected, connections_own, strict=True))
    assert told(environ) == wanted
    assert environ.get("HTTPS") == ("on" if wanted[2] == "https" else None)
    # The fields themselves stay for the application to read.
    for field in fields:
        name, _, value = field.partition(": ")
        key = "HTTP_" + name.upper().replace("-", "_")
        assert value.strip() in environ[key]


ALL_FIELDS = [FOR + "1.2.3.4", PROTO + "https", HOST + "evil", PORT + "443"]


@pytest.mark.parametrize("fields", [ALL_FIELDS, ["Forwarded: for=1.2.3.4;proto=https;host=evil"]],
                         ids=["x-forwarded", "forwarded"])
def test_from_anybody_else_the_fields_change_nothing(site, fields):
    connection = over_tcp(site, "127.0.0.2")
    own = connection.getsockname()
    environ = environ_over(connection, *fields)
    assert told(environ) == ("127.0.0.2", str(own[1]), "http", "a.example", str(site.port))
    assert "HTTPS" not in environ
    assert environ["HTTP_" + fields[0].partition(":")[0].upper().replace("-", "_")]


def test_behaviour_4_underscores_never_count(site):
    """PRODUCTION 4, from a peer that is trusted."""
    spellings = ["X_Forwarded_For: 6.6.6.6", "X-Forwarded_Proto: https", "X_Forwarded-Host: evil",
                 "X_Forwarded_Port: 1"]
    environ = environ_over(over_tcp(site), *spellings)
    assert told(environ)[2:] == ("http", "a.example", str(site.port))
    assert environ["REMOTE_ADDR"] == "127.0.0.1"
    assert not [key for key in environ if "FORWARDED" in key]
    # Beside the real one, before and behind it.
    for fields in ([spellings[0], FOR + "1.2.3.4"], [FOR + "1.2.3.4", spellings[0]]):
        environ = environ_over(over_tcp(site), *fields)
        assert (environ["REMOTE_ADDR"], environ["HTTP_X_FORWARDED_FOR"]) == ("1.2.3.4", "1.2.3.4")


def test_each_request_of_a_connection_is_told_for_itself(site):
    with closing(over_tcp(site)) as connection:
        seen = []
        for fields in ([FOR + "1.2.3.4", PROTO + "https"], [], [FOR + "5.6.7.8"]):
            _, _, body = answer_to(connection, request("GET", "/echo", *fields))
            environ = json.loads(body)["environ"]
            seen.append((environ["REMOTE_ADDR"], environ["wsgi.url_scheme"]))
        assert seen == [("1.2.3.4", "https"), ("127.0.0.1", "http"), ("5.6.7.8", "http")]


def test_the_listing_of_fields_leaves_out_the_others(serve):
    server = serve("behaviour_echo:app", "--trusted-fields", "for,proto,port")
    environ = environ_over(over_tcp(server), *ALL_FIELDS)
    assert told(environ) == ("1.2.3.4", "0", "https", "a.example", "443")
    server = serve("behaviour_echo:app", "--trusted-fields", "off")
    environ = environ_over(over_tcp(server), *ALL_FIELDS)
    assert told(environ)[2:] == ("http", "a.example", str(server.port))
    assert environ["REMOTE_ADDR"] == "127.0.0.1"


def test_off_trusts_nobody_and_a_star_everybody(serve, tmp_path):
    server = serve("behaviour_echo:app", "--trusted-proxies", "off", "--bind",
                   f"unix:{tmp_path}/off.sock")
    server.path = f"{tmp_path}/off.sock"
    assert environ_over(over_tcp(server), *ALL_FIELDS)["REMOTE_ADDR"] == "127.0.0.1"
    assert environ_over(over_unix(server), *ALL_FIELDS)["REMOTE_ADDR"] == ""
    server = serve("behaviour_echo:app", "--trusted-proxies", "*")
    environ = environ_over(over_tcp(server, "127.0.0.2"), FOR + "6.6.6.6, 1.2.3.4")
    assert environ["REMOTE_ADDR"] == "6.6.6.6"


def test_an_ipv4_peer_of_an_ipv6_socket_is_an_ipv4_peer(serve):
    """Our own IPv6 sockets take no IPv4; one that is handed over may."""
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    both = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    with both:
        server = serve("behaviour_echo:app", bind=f"fd://{both.fileno()}",
                       pass_fds=(both.fileno(),))
        server.port = both.getsockname()[1]
    assert environ_over(over_tcp(server), FOR + "1.2.3.4")["REMOTE_ADDR"] == "1.2.3.4"
    connection = socket.create_connection(("::1", server.port), 10)
    assert environ_over(connection, FOR + "1.2.3.4")["REMOTE_ADDR"] == "1.2.3.4"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--trusted-proxies", "::1,10.0.0.1/8"],
         'trusted-proxies has "10.0.0.1/8" (from --trusted-proxies): expected 10.0.0.0/8, which is '
         "the network of 10.0.0.1"),
        (["--trusted-proxies", "*,unix"],
         'trusted-proxies has "*" (from --trusted-proxies): expected * alone'),
        (["--trusted-proxies", "nginx"],
         'trusted-proxies has "nginx" (from --trusted-proxies): expected an address such as'),
        (["--trusted-fields", "for,by"],
         'trusted-fields has "by" (from --trusted-fields): expected for, proto, host or port'),
    ],
)
@pytest.mark.parametrize("verb", ["serve", "doctor"])
def test_a_bad_list_names_its_item(verb, flags, sentence):
    run = subprocess.run([COMMAND, verb, "hello", "--app-dir", TESTS / "apps", *flags],
                         capture_output=True, text=True, timeout=30, cwd=TESTS)
    assert run.returncode == 2 and sentence in run.stdout + run.stderr, run


def test_the_access_log_shows_the_client(serve, tmp_path):
    file = tmp_path / "access.log"
    server = serve("hello", "--access-log", file)
    with closing(over_tcp(server)) as connection:
        asked = request("GET", "/", FOR + "6.6.6.6, 1.2.3.4")
        assert answer_to(connection, asked)[0] == 200
    assert server.stop() == 0
    assert file.read_text().startswith("1.2.3.4 ")


# Django, with its own settings at their defaults.


@pytest.fixture(scope="module")
def django(io_kind):
    with Server("trust_django:application", io=io_kind) as running:
        yield running
        assert not OUR_FAULT.search(running.log()), running.log()


def django_sees(server, *fields, source="127.0.0.1"):
    with closing(over_tcp(server, source)) as connection:
        status, _, body = answer_to(connection, request("GET", "/seen", *fields))
    return json.loads(body) if status == 200 else status


def test_django_behind_a_trusted_proxy(django):
    assert django_sees(django, FOR + "6.6.6.6, 1.2.3.4", PROTO + "https") == {
        "secure": True, "host": "a.example", "port": "443", "address": "1.2.3.4",
        "url": "https://a.example/page?q=1",
    }
    assert django_sees(django, FOR + "1.2.3.4", PROTO + "https", HOST + "public.example",
                       PORT + "443") == {
        "secure": True, "host": "public.example", "port": "443", "address": "1.2.3.4",
        "url": "https://public.example/page?q=1",
    }
    forwarded = 'Forwarded: for=1.2.3.4;proto=https;host="public.example:8443"'
    assert django_sees(django, forwarded) == {
        "secure": True, "host": "public.example:8443", "port": "8443", "address": "1.2.3.4",
        "url": "https://public.example:8443/page?q=1",
    }
    assert django_sees(django, HOST + "evil.example") == 400, "ALLOWED_HOSTS judges it like a Host"


def test_django_that_is_asked_directly(django):
    plain = {"secure": False, "host": "a.example", "port": str(django.port),
             "url": "http://a.example/page?q=1"}
    assert django_sees(django) == {**plain, "address": "127.0.0.1"}
    assert django_sees(django, *ALL_FIELDS, source="127.0.0.2") == {**plain, "address": "127.0.0.2"}


def test_djangos_origin_check_passes_although_a_port_was_told(django):
    proxy = [FOR + "1.2.3.4", PROTO + "https", PORT + "443"]
    with closing(over_tcp(django)) as connection:
        status, head, body = answer_to(connection, request("GET", "/form", *proxy))
        assert status == 200
        cookie = re.search(r"(?i)set-cookie: csrftoken=(\w+)", head)[1]
        fields = ["Origin: https://a.example", f"Cookie: csrftoken={cookie}",
                  f"X-CSRFToken: {body.decode()}", "Content-Length: 0"]
        assert answer_to(connection, request("POST", "/form", *proxy, *fields))[0] == 200
        # Without the proxy's word the origin is another one.
        assert answer_to(connection, request("POST", "/form", *fields))[0] == 403


# The proxies of docs/deployment.md, where they are installed


def lines_of_the_guide(section, pattern):
    """The lines of a configuration in the deployment guide that match."""
    guide = (TESTS.parent / "docs" / "deployment.md").read_text()
    block = guide.split(f"\n## {section}\n")[1].split("\n## ")[0].split("```")[1]
    return "\n".join(line for line in block.splitlines() if re.match(pattern, line))


def nginx(directory, port, upstream):
    config = directory / "nginx.conf"
    fields = lines_of_the_guide("nginx", r" *proxy_(set_header|http_version)")
    assert fields.count("proxy_set_header") >= 8
    config.write_text(f"""
        daemon off; pid {directory}/pid; error_log stderr; events {{}}
        http {{ access_log off; client_body_temp_path {directory}/a; proxy_temp_path {directory}/b;
        fastcgi_temp_path {directory}/c; uwsgi_temp_path {directory}/d; scgi_temp_path {directory}/e;
        server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://127.0.0.1:{upstream};
        {fields} }} }} }}""")
    return ["nginx", "-p", str(directory), "-e", "stderr", "-c", str(config)]


def haproxy(directory, port, upstream):
    config = directory / "haproxy.cfg"
    fields = lines_of_the_guide("HAProxy", r" *(http-request|option forwardfor)")
    assert fields.count("http-request") >= 5
    config.write_text(f"""
defaults
    mode http
    timeout connect 5s
    timeout client 20s
    timeout server 20s
frontend site
    bind 127.0.0.1:{port}
    default_backend app
backend app
{fields}
    server one 127.0.0.1:{upstream}
""")
    return ["haproxy", "-db", "-f", str(config)]


@pytest.mark.parametrize("command", [nginx, haproxy], ids=lambda command: command.__name__)
def test_behind_the_proxies_of_the_guide_a_client_can_forge_nothing(serve, tmp_path, command):
    program = shutil.which(command.__name__, path=os.environ.get("PATH", "") + ":/usr/sbin")
    if not program:
        pytest.skip(f"no {command.__name__} here")
    server = serve("behaviour_echo:app", "--request-id")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    arguments = command(tmp_path, port, server.port)
    proxy = subprocess.Popen([program, *arguments[1:]], stdout=subprocess.DEVNULL,
                             stderr=(tmp_path / "log").open("wb"))
    try:
        wait_until(lambda: accepts(port) or proxy.poll() is not None, 20, "the proxy listens")
        assert proxy.poll() is None, (tmp_path / "log").read_text()
        forged = [FOR + "6.6.6.6", PROTO + "https", HOST + "evil", PORT + "6", "X-Request-ID: forged",
                  "Forwarded: for=6.6.6.6;proto=https;host=evil", "X_Forwarded_For: 6.6.6.6"]
        # The proxy is 127.0.0.1 to the server, its client is 127.0.0.2.
        address = (("127.0.0.1", port), 10, ("127.0.0.2", 0))
        environ = environ_over(socket.create_connection(*address), *forged)
        assert told(environ) == ("127.0.0.2", "0", "http", "a.example", str(port))
        assert re.fullmatch(r"[0-9a-f-]{32,36}", environ["HTTP_X_REQUEST_ID"])
        assert "HTTPS" not in environ and "HTTP_FORWARDED" not in environ
    finally:
        proxy.terminate()
        proxy.wait(10)


def accepts(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


# X-Request-ID


@pytest.fixture(scope="module")
def named(io_kind):
    with Server("request_ids:app", "--request-id", io=io_kind) as running:
        yield running
        assert not OUR_FAULT.search(running.log()), running.log()


def names_for(server, *fields, source="127.0.0.1"):
    """The id in the response and the one in the environ."""
    with closing(over_tcp(server, source)) as connection:
        status, head, body = answer_to(connection, request("GET", "/", *fields))
    assert status == 200
    (sent,) = re.findall(r"(?i)\r\nx-request-id: ([^\r]*)", head)
    return sent, body.decode("latin-1")


MADE = re.compile(r"[0-9a-f]{32}")


@pytest.mark.parametrize("name", ["a", "0af7651916cd43dd-b7ad6b7169203331", "a:b/c=d;~!#", "x" * 128])
def test_rule_27_a_trusted_proxys_request_id_is_kept(named, name):
    """RULES 27: in, from trusted peers only, and out."""
    assert names_for(named, f"X-Request-ID: {name}") == (name, name)
    sent, seen = names_for(named, f"X-Request-ID: {name}", source="127.0.0.2")
    assert sent == seen != name and MADE.fullmatch(sent)


@pytest.mark.parametrize("fields", [
    ["X-Request-ID:"], ["X-Request-ID: a b"], ["X-Request-ID: a,b"], ['X-Request-ID: "a"'],
    ["X-Request-ID: a'b"], ["X-Request-ID: a\\b"], ["X-Request-ID: caf\xe9"], ["X-Request-ID: a\tb"],
    ["X-Request-ID: " + "x" * 129], ["X-Request-ID: a", "X-Request-ID: b"], ["X_Request_ID: a"],
], ids=repr)
def test_rule_27_a_request_id_that_could_forge_a_line_is_replaced(named, fields):
    sent, seen = names_for(named, *fields)
    assert sent == seen and MADE.fullmatch(sent)


def test_rule_27_a_kept_request_id_is_in_both_logs(serve, tmp_path):
    file = tmp_path / "access.log"
    server = serve("request_ids:app", "--request-id", "--access-log", file)
    server.get("/raise", X_Request_ID="trace-7")
    server.wait_for_log(r"GET /raise id=trace-7")
    assert server.stop() == 0
    assert "trace-7" in file.read_text()
