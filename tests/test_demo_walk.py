"""A walk through the Django demo as a visitor takes it, against the installed server."""

from __future__ import annotations

import csv
import html
import http.cookiejar
import io
import os
import random
import re
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from harness import Server

DEMO = Path(__file__).resolve().parent.parent / "examples" / "django_demo"
MIB = 1024 * 1024


class Visitor:
    """A browser without a screen: cookies, forms, redirects."""

    def __init__(self, server: Server) -> None:
        self.base = f"http://127.0.0.1:{server.port}"
        cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        self.opener = urllib.request.build_opener(cookies)

    def open(
        self, path: str, data: bytes | None = None, **headers: str
    ) -> tuple[int, object, bytes]:
        """Status, fields, body; redirects are followed."""
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        asked = urllib.request.Request(self.base + path, data, fields)
        try:
            with self.opener.open(asked, timeout=30) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as answer:
            return answer.code, answer.headers, answer.read()

    def page(self, path: str) -> str:
        """A page that is there."""
        status, _, body = self.open(path)
        assert status == 200, (path, status, body[:2000])
        return body.decode()

    def submit(self, page: str, action: str = "", **fields: str) -> tuple[int, str]:
        """Sends the form of a page."""
        data = urllib.parse.urlencode({"csrfmiddlewaretoken": self.token(page), **fields}).encode()
        status, _, body = self.open(action or page, data)
        return status, body.decode()

    def upload(self, page: str, action: str, name: str, content: bytes) -> tuple[int, str]:
        """Sends a file with the form of a page."""
        boundary = uuid.uuid4().hex
        parts = (
            f'--{boundary}\r\nContent-Disposition: form-data; name="csrfmiddlewaretoken"\r\n\r\n'
            f"{self.token(page)}\r\n"
            f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        ).encode()
        data = parts + content + f"\r\n--{boundary}--\r\n".encode()
        status, _, body = self.open(
            action, data, Content_Type=f"multipart/form-data; boundary={boundary}"
        )
        return status, body.decode()

    def token(self, page: str) -> str:
        """The form token of a page."""
        return re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', self.page(page))[1]

    def log_in(self) -> None:
        """As the demo's superuser."""
        status, text = self.submit("/accounts/login/", username="admin", password="admin")
        assert status == 200 and "Log out admin" in text


@pytest.fixture(scope="module")
def demo(io_kind, tmp_path_factory):
    """The demo with its data, served by two workers of four threads."""
    place = tmp_path_factory.mktemp("demo")
    env = {
        "DEMO_DATABASE": str(place / "db.sqlite3"),
        "DEMO_MEDIA_ROOT": str(place / "media"),
    }
    for command in (["migrate", "--noinput"], ["demo_data"]):
        subprocess.run(
            [sys.executable, str(DEMO / "manage.py"), *command],
            env={**os.environ, **env},
            check=True,
            stdout=subprocess.DEVNULL,
        )
    with Server("demo", "--threads", "4", app_dir=DEMO, workers=2, env=env, io=io_kind) as server:
        yield server


@pytest.fixture
def visitor(demo):
    return Visitor(demo)


def test_list_pages_and_search(visitor):
    first = visitor.page("/")
    assert "500 books" in first and 'aria-current="page">1<' in first
    assert first.count('<td><a href="/books/') == 25
    assert 'aria-current="page">20<' in visitor.page("/?page=20")
    assert "5 books" in visitor.page("/?q=patient+harbour")
    umlaut = visitor.page("/?q=" + urllib.parse.quote("Jürgen"))
    assert "Jürgen" in umlaut and "No book matches" not in umlaut


def test_log_in_add_edit_lend_and_log_out(visitor):
    status, text = visitor.submit("/accounts/login/", username="admin", password="wrong")
    assert status == 200 and "correct username and password" in text
    assert "Log in" in visitor.page("/books/add/")
    visitor.log_in()
    author = re.search(r'<option value="(\d+)">', visitor.page("/books/add/"))[1]
    book = {
        "title": "Rings & Snakes",
        "author": author,
        "isbn": "978-0-306-40615-7",
        "year": "1999",
        "pages": "12",
        "summary": "Ünïcödé",
    }
    status, text = visitor.submit("/books/add/", **(book | {"isbn": "978-0-306-40615-8"}))
    assert "The check digit should be 7, not 8." in text
    status, text = visitor.submit("/books/add/", **book)
    assert status == 200 and "is on the shelf." in text and "Ünïcödé" in text
    path = re.search(r"(/books/\d+/)edit/", text)[1]
    status, text = visitor.submit(f"{path}edit/", **(book | {"title": "Rings"}))
    assert "<h1>Rings</h1>" in text
    status, text = visitor.submit(path, f"{path}lend/", reader="Ruth")
    assert "lent to Ruth" in text
    status, text = visitor.submit(path, f"{path}lend/", reader="Amir")
    assert status == 409 and "This book is lent already." in text
    status, text = visitor.submit(path, f"{path}return/")
    assert "Returned." in text
    status, text = visitor.submit("/", "/accounts/logout/")
    assert status == 200 and "Log out" not in text
    assert "Log in" in visitor.page("/books/add/")


def test_the_session_remembers(visitor):
    for pk in (3, 1, 2):
        visitor.page(f"/books/{pk}/")
    assert "You opened 4 book pages" in visitor.page("/books/3/")
    recent = visitor.page("/").partition("You looked at")[2]
    assert re.findall(r'href="/books/(\d+)/"', recent) == ["3", "2", "1"]


@pytest.mark.parametrize("size", [1, 3 * MIB + 7, 20 * MIB])
def test_upload_and_download(visitor, size):
    visitor.log_in()
    content = random.Random(size).randbytes(size)
    status, text = visitor.upload("/books/7/", "/books/7/upload/", f"scan-{size}.bin", content)
    assert status == 200 and f"was uploaded: {size} bytes." in html.unescape(text)
    path = re.search(rf'href="(/documents/\d+/)" download>scan-{size}\.bin<', text)[1]
    status, fields, body = visitor.open(path)
    assert (status, fields["Content-Length"]) == (200, str(size))
    assert fields["Content-Disposition"] == f'attachment; filename="scan-{size}.bin"'
    assert body == content


def test_csv_has_every_row(visitor):
    status, fields, body = visitor.open("/loans.csv")
    assert (status, fields["Content-Type"]) == (200, "text/csv; charset=utf-8")
    assert fields["Content-Length"] is None
    rows = list(csv.DictReader(io.StringIO(body.decode())))
    assert len(rows) > 3000
    numbers = [int(row["loan"]) for row in rows]
    assert numbers == sorted(set(numbers))
    assert all(row["isbn"].startswith("97") and row["reader"] for row in rows)


def test_the_form_token_is_needed(visitor):
    visitor.log_in()
    status, _, _ = visitor.open("/books/1/return/", b"")
    assert status == 403


def test_facts(visitor, demo):
    text = html.unescape(re.sub(r"\s*<[^>]+>\s*", "|", visitor.page("/facts/")))
    facts = dict(re.findall(r"\|+([^|]+)\|+([^|]+)\|", text.partition("What the server handed")[2]))
    assert int(facts["Worker process"]) in demo.worker_pids()
    assert re.fullmatch(r"hoopsnake-pool-\d+", facts["Thread"])
    assert facts["Interface"] == "WSGI"
    assert facts["Scheme"] == "http"
    assert "127.0.0.1" in facts["Client's address"]
    assert facts["Multithread"] == facts["Multiprocess"] == "True"
    assert facts["Files sent by the server (wsgi.file_wrapper)"] == "True"


def test_a_slow_view_holds_up_nobody(visitor, demo):
    with ThreadPoolExecutor(4) as pool:
        slow = [pool.submit(Visitor(demo).page, "/slow/?seconds=3") for _ in range(3)]
        time.sleep(0.3)
        for _ in range(5):
            started = time.monotonic()
            visitor.page("/")
            assert time.monotonic() - started < 2
        assert not any(one.done() for one in slow)
        assert all(one.result().startswith("slept 3 s on ") for one in slow)


def test_a_view_that_raises_is_a_500_and_the_worker_lives(visitor, demo):
    before = demo.worker_pids()
    for _ in range(20):
        status, _, _ = visitor.open("/boom/")
        assert status == 500
    demo.wait_for_log("this page always fails")
    visitor.page("/")
    assert demo.worker_pids() == before


def test_admin_and_its_static_files(visitor):
    visitor.log_in()
    for page in ("/admin/", "/admin/library/book/", "/admin/library/loan/?returned__isempty=1"):
        assert "Site administration" in visitor.page(page) or "Select" in visitor.page(page)
    style = re.search(r'href="(/static/admin/css/base[^"]*\.css)"', visitor.page("/admin/"))[1]
    status, fields, body = visitor.open(style)
    assert (status, fields["Content-Type"]) == (200, "text/css")
    assert int(fields["Content-Length"]) == len(body) > 1000


def test_many_visitors_write_at_once(demo):
    # SQLite has one writer: with the demo's settings the others wait instead of failing.
    def visit(pk: int) -> None:
        visitor = Visitor(demo)
        visitor.log_in()
        for _ in range(3):
            visitor.page(f"/books/{pk}/")
            status, _ = visitor.submit(f"/books/{pk}/", f"/books/{pk}/lend/", reader="Wen")
            assert status in (200, 409)
            status, text = visitor.submit(f"/books/{pk}/", f"/books/{pk}/return/")
            assert status == 200 and "Returned." in text

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(visit, range(100, 108)))
