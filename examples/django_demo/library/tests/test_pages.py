"""Every page, through Django's test client."""

import csv
import io
import shutil
import tempfile

from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import call_command
from django.test import TestCase, override_settings
from django.urls import reverse

from library.models import Book, Document, Loan

GOOD_ISBN = "9780306406157"


class LibraryTestCase(TestCase):
    """With the demo's data, and uploads in a folder that is thrown away."""

    @classmethod
    def setUpTestData(cls):
        call_command("demo_data", stdout=io.StringIO())
        cls.book = Book.objects.get(isbn__startswith="979000000007")
        cls.lent = Book.objects.filter(loans__returned__isnull=True, loans__isnull=False).first()
        cls.free = Book.objects.exclude(
            pk__in=Loan.objects.filter(returned__isnull=True).values("book")
        ).first()

    def setUp(self):
        media = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, media)
        override = override_settings(MEDIA_ROOT=media)
        override.enable()
        self.addCleanup(override.disable)

    def log_in(self):
        """As the demo's superuser."""
        self.assertTrue(self.client.login(username="admin", password="admin"))


class Shelf(LibraryTestCase):
    """The list, its pages and its search."""

    def test_first_and_last_page(self):
        first = self.client.get("/")
        self.assertContains(first, "500 books")
        self.assertEqual(len(first.context["page"]), 25)
        self.assertContains(first, 'aria-current="page">1<')
        last = self.client.get("/?page=20")
        self.assertEqual(last.context["page"].end_index(), 500)

    def test_a_page_beyond_the_end_is_the_last(self):
        self.assertEqual(self.client.get("/?page=9999").context["page"].number, 20)
        self.assertEqual(self.client.get("/?page=x").context["page"].number, 1)

    def test_search_by_title_author_and_isbn(self):
        by_title = self.client.get("/", {"q": "patient harbour"})
        self.assertEqual(by_title.context["page"].paginator.count, 5)
        by_author = self.client.get("/", {"q": self.book.author.name})
        self.assertIn(self.book, by_author.context["page"].paginator.object_list)
        by_isbn = self.client.get("/", {"q": self.book.isbn})
        self.assertEqual([b.pk for b in by_isbn.context["page"]], [self.book.pk])

    def test_search_without_a_result_and_with_markup(self):
        found = self.client.get("/", {"q": "<script>alert(1)</script>"})
        self.assertContains(found, "No book matches.")
        self.assertNotContains(found, "<script>alert")

    def test_the_list_costs_a_fixed_number_of_queries(self):
        with self.assertNumQueries(2):
            self.client.get("/")


class BookPage(LibraryTestCase):
    """One book, and what the session remembers."""

    def test_shows_the_book(self):
        page = self.client.get(self.book.get_absolute_url())
        self.assertContains(page, self.book.isbn)
        self.assertContains(page, "Log in</a> to upload")

    def test_unknown_book(self):
        self.assertEqual(self.client.get("/books/999999/").status_code, 404)

    def test_recently_viewed_and_counter(self):
        books = list(Book.objects.all()[:7])
        for book in books:
            page = self.client.get(book.get_absolute_url())
        self.assertContains(page, "You opened 7 book pages")
        page = self.client.get(books[3].get_absolute_url())
        self.assertContains(page, "You opened 8 book pages")
        recent = self.client.get("/").context["recent"]
        self.assertEqual(recent, [books[3], books[6], books[5], books[4], books[2]])


class Editing(LibraryTestCase):
    """Adding and changing books."""

    def fields(self, **changes):
        """A book that is accepted, with changes."""
        return {
            "title": "New",
            "author": self.book.author_id,
            "isbn": GOOD_ISBN,
            "year": 1999,
            "pages": 10,
            "summary": "",
            **changes,
        }

    def test_needs_a_login(self):
        for address in (reverse("library:book-add"), reverse("library:book-edit", args=[1])):
            answer = self.client.post(address, self.fields())
            self.assertRedirects(answer, f"/accounts/login/?next={address}")
        self.assertFalse(Book.objects.filter(isbn=GOOD_ISBN).exists())

    def test_needs_the_csrf_token(self):
        strict = self.client_class(enforce_csrf_checks=True)
        strict.login(username="admin", password="admin")
        answer = strict.post(reverse("library:book-add"), self.fields())
        self.assertEqual(answer.status_code, 403)

    def test_add_and_edit(self):
        self.log_in()
        self.assertContains(self.client.get(reverse("library:book-add")), "csrfmiddlewaretoken")
        answer = self.client.post(
            reverse("library:book-add"), self.fields(isbn="978-0-306-40615-7"), follow=True
        )
        self.assertContains(answer, "“New” is on the shelf.")
        added = Book.objects.get(isbn=GOOD_ISBN)
        edit = reverse("library:book-edit", args=[added.pk])
        self.assertContains(self.client.get(edit), "Edit “New”")
        self.client.post(edit, self.fields(title="Newer"))
        added.refresh_from_db()
        self.assertEqual(added.title, "Newer")

    def test_refuses_what_is_wrong(self):
        self.log_in()
        wrong = {
            "isbn": ["9780306406158", "123", "978030640615X", self.book.isbn],
            "year": ["1200", "x"],
            "pages": ["0", "-3"],
            "title": [""],
            "author": ["999999"],
        }
        for field, values in wrong.items():
            for value in values:
                with self.subTest(field=field, value=value):
                    answer = self.client.post(
                        reverse("library:book-add"), self.fields(**{field: value})
                    )
                    self.assertEqual(answer.status_code, 200)
                    self.assertIn(field, answer.context["form"].errors)
        self.assertEqual(Book.objects.count(), 500)


class Lending(LibraryTestCase):
    """Loans."""

    def test_lend_and_give_back(self):
        self.log_in()
        lend = reverse("library:lend", args=[self.free.pk])
        answer = self.client.post(lend, {"reader": "Ruth"}, follow=True)
        self.assertContains(answer, "lent to Ruth")
        back = reverse("library:give-back", args=[self.free.pk])
        self.assertContains(self.client.post(back, follow=True), "Returned.")
        self.assertContains(self.client.post(back, follow=True), "Nobody had this book.")

    def test_nobody_lends_a_book_twice(self):
        self.log_in()
        count = self.lent.loans.count()
        lend = reverse("library:lend", args=[self.lent.pk])
        answer = self.client.post(lend, {"reader": "Ruth"})
        self.assertContains(answer, "This book is lent already.", status_code=409)
        self.assertEqual(self.lent.loans.count(), count)

    def test_a_loan_has_a_reader(self):
        self.log_in()
        lend = reverse("library:lend", args=[self.free.pk])
        self.assertEqual(self.client.post(lend, {"reader": ""}).status_code, 400)

    def test_get_changes_nothing(self):
        self.log_in()
        for name in ("lend", "give-back", "upload"):
            answer = self.client.get(reverse(f"library:{name}", args=[self.free.pk]))
            self.assertEqual(answer.status_code, 405)

    def test_csv_has_a_row_for_each_loan(self):
        answer = self.client.get("/loans.csv")
        self.assertTrue(answer.streaming)
        self.assertEqual(answer["Content-Type"], "text/csv; charset=utf-8")
        text = b"".join(answer.streaming_content).decode()
        rows = list(csv.DictReader(io.StringIO(text)))
        self.assertEqual(len(rows), Loan.objects.count())
        self.assertGreater(len(rows), 2000)
        first = Loan.objects.order_by("pk").select_related("book").first()
        self.assertEqual(rows[0]["reader"], first.reader)
        self.assertEqual(rows[0]["isbn"], first.book.isbn)


class Documents(LibraryTestCase):
    """Files."""

    def post(self, content, name="scan.bin"):
        """Uploads it to a book."""
        return self.client.post(
            reverse("library:upload", args=[self.book.pk]),
            {"file": SimpleUploadedFile(name, content)},
            follow=True,
        )

    def test_upload_and_download_several_megabytes(self):
        self.log_in()
        content = bytes(range(256)) * (16 * 1024)  # 4 MiB
        self.assertContains(self.post(content), "“scan.bin” was uploaded: 4194304 bytes.")
        document = Document.objects.get()
        self.assertEqual((document.size, document.uploaded_by.username), (4194304, "admin"))
        answer = self.client.get(reverse("library:download", args=[document.pk]))
        self.assertEqual(answer["Content-Disposition"], 'attachment; filename="scan.bin"')
        self.assertEqual(answer["Content-Length"], "4194304")
        self.assertEqual(b"".join(answer.streaming_content), content)
        self.assertContains(self.client.get(self.book.get_absolute_url()), "4.0\xa0MB")

    def test_a_name_is_no_path(self):
        self.log_in()
        self.post(b"x", name="../../etc/passwd")
        self.assertEqual(Document.objects.get().name, "passwd")

    def test_refuses_empty_missing_and_too_large(self):
        self.log_in()
        self.assertEqual(self.post(b"").status_code, 400)
        address = reverse("library:upload", args=[self.book.pk])
        self.assertEqual(self.client.post(address).status_code, 400)
        with self.settings(LIBRARY_DOCUMENT_BYTES_MAX=10):
            answer = self.post(b"12345678901")
        self.assertContains(answer, "the library keeps up to", status_code=400)
        self.assertFalse(Document.objects.exists())

    def test_needs_a_login(self):
        self.post(b"x")
        self.assertFalse(Document.objects.exists())

    def test_unknown_document(self):
        self.assertEqual(self.client.get("/documents/999/").status_code, 404)


class Probes(LibraryTestCase):
    """The pages about the server."""

    def test_facts(self):
        page = self.client.get("/facts/")
        self.assertContains(page, "MainThread")
        self.assertContains(page, "Worker process")

    def test_slow(self):
        self.assertContains(self.client.get("/slow/?seconds=0.01"), "slept 0.01 s on MainThread")
        for wrong in ("x", "-1", "nan"):
            self.assertEqual(self.client.get(f"/slow/?seconds={wrong}").status_code, 400)

    def test_boom(self):
        with self.assertRaisesMessage(RuntimeError, "this page always fails"):
            self.client.get("/boom/")
        self.client.raise_request_exception = False
        self.assertEqual(self.client.get("/boom/").status_code, 500)


class Accounts(LibraryTestCase):
    """Logging in and out, and the admin."""

    def test_log_in_and_out(self):
        self.assertContains(self.client.get("/accounts/login/"), "csrfmiddlewaretoken")
        wrong = self.client.post("/accounts/login/", {"username": "admin", "password": "x"})
        self.assertContains(wrong, "correct username and password")
        right = {"username": "admin", "password": "admin", "next": "/facts/"}
        self.assertRedirects(self.client.post("/accounts/login/", right), "/facts/")
        self.assertContains(self.client.get("/"), "Log out admin")
        self.assertRedirects(self.client.post("/accounts/logout/"), "/")
        self.assertNotContains(self.client.get("/"), "Log out")

    def test_admin_pages(self):
        self.assertEqual(self.client.get("/admin/").status_code, 302)
        self.log_in()
        for model in ("author", "book", "loan", "document"):
            with self.subTest(model=model):
                base = f"/admin/library/{model}/"
                self.assertEqual(self.client.get(f"{base}?q=a").status_code, 200)
                self.assertEqual(self.client.get(f"{base}add/").status_code, 200)
        page = self.client.get(f"/admin/library/book/{self.book.pk}/change/")
        self.assertContains(page, self.book.isbn)
