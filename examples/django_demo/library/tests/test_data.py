"""The command that fills the library, and the check digit it needs."""

import io

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.db import IntegrityError, transaction
from django.test import SimpleTestCase, TestCase

from library.isbn import check_digit, validate_isbn
from library.models import Author, Book, Loan


class DemoData(TestCase):
    """`manage.py demo_data`"""

    def fill(self):
        """Runs it; returns what it prints."""
        out = io.StringIO()
        call_command("demo_data", stdout=out)
        return out.getvalue()

    def test_a_second_run_changes_nothing(self):
        self.assertIn("login: admin", self.fill())
        before = list(Loan.objects.order_by("pk").values()), list(Book.objects.values())
        self.assertEqual((Author.objects.count(), Book.objects.count()), (50, 500))
        self.fill()
        self.assertEqual(
            before, (list(Loan.objects.order_by("pk").values()), list(Book.objects.values()))
        )

    def test_a_changed_password_stays(self):
        self.fill()
        user = get_user_model().objects.get(username="admin")
        user.set_password("other")
        user.save()
        self.fill()
        user.refresh_from_db()
        self.assertTrue(user.check_password("other"))

    def test_every_book_is_valid(self):
        self.fill()
        for book in Book.objects.all():
            book.full_clean(validate_unique=False)

    def test_the_database_refuses_a_second_open_loan(self):
        self.fill()
        book = Loan.objects.filter(returned__isnull=True).first().book
        with self.assertRaises(IntegrityError), transaction.atomic():
            Loan.objects.create(book=book, reader="Ruth")


class Isbn(SimpleTestCase):
    """Known numbers."""

    def test_known(self):
        for known in ("9780306406157", "9783161484100", "9791090636071"):
            self.assertEqual(check_digit(known[:12]), known[12])
            validate_isbn(known)

    def test_wrong(self):
        for wrong in ("9780306406158", "", "97803064061570", "978030640615²", "٩٧٨٠٣٠٦٤٠٦١٥٧"):
            with self.subTest(wrong=wrong), self.assertRaises(ValidationError):
                validate_isbn(wrong)
