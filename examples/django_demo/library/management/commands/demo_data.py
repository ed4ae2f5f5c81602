"""Fills the library. Deterministic, without network, and harmless when run again."""

import datetime
import random

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand
from django.db import transaction

from library.isbn import check_digit
from library.models import Author, Book, Loan

AUTHOR_COUNT = 50
BOOK_COUNT = 500
LOANS_PER_BOOK_MAX = 12
FIRST_NAMES = [
    "Ada",
    "Björn",
    "Chiara",
    "Dmitri",
    "Élodie",
    "Farid",
    "Grace",
    "Hiroshi",
    "Inés",
    "Jürgen",
]
LAST_NAMES = ["Okafor", "Lindqvist", "Moreau", "Tanaka", "Ferreira"]
ADJECTIVES = [
    "Patient",
    "Hidden",
    "Northern",
    "Paper",
    "Restless",
    "Second",
    "Quiet",
    "Borrowed",
    "Salt",
    "Unfinished",
]
NOUNS = [
    "Harbour",
    "Garden",
    "Clockmaker",
    "Atlas",
    "Orchard",
    "Lighthouse",
    "Grammar",
    "Winter",
    "Engine",
    "Meridian",
]
FORMS = ["The {} {}", "A {} {}", "Notes on a {} {}", "{} {}: A History", "Letters from the {} {}"]
READERS = ["Ruth", "Amir", "Kofi", "Lena", "Tomás", "Wen", "Priya", "Noah", "Zofia", "Marta"]
FIRST_DAY = datetime.date(2020, 1, 6)


class Command(BaseCommand):
    """`manage.py demo_data`"""

    help = "Creates the login admin/admin, 50 authors, 500 books and their loans. May be repeated."

    @transaction.atomic
    def handle(self, *args, **options):
        """One transaction: all of it, or nothing."""
        self.create_superuser()
        dice = random.Random(2026)
        self.create_books(dice)
        self.create_loans(dice)
        self.stdout.write(
            f"{Author.objects.count()} authors, {Book.objects.count()} books, "
            f"{Loan.objects.count()} loans"
        )
        self.stdout.write(self.style.SUCCESS("login: admin   password: admin   (also at /admin/)"))

    def create_superuser(self):
        """The login, unless it is there: a password that somebody changed stays changed."""
        users = get_user_model()
        if not users.objects.filter(username="admin").exists():
            users.objects.create_superuser("admin", "admin@example.com", "admin")

    def create_books(self, dice):
        """Authors and books; the unique name and ISBN make a second run change nothing."""
        names = [f"{first} {last}" for last in LAST_NAMES for first in FIRST_NAMES]
        Author.objects.bulk_create(
            [Author(name=name, born=dice.randint(1850, 1995)) for name in names[:AUTHOR_COUNT]],
            ignore_conflicts=True,
        )
        authors = Author.objects.in_bulk(names, field_name="name")
        titles = [
            form.format(adjective, noun)
            for form in FORMS
            for adjective in ADJECTIVES
            for noun in NOUNS
        ]
        Book.objects.bulk_create(
            [
                self.book(dice, number, title, authors[dice.choice(names)])
                for number, title in enumerate(titles[:BOOK_COUNT])
            ],
            ignore_conflicts=True,
        )

    def book(self, dice, number, title, author):
        """The book with that number."""
        first_twelve = f"97900000{number:04}"
        return Book(
            title=title,
            author=author,
            isbn=first_twelve + check_digit(first_twelve),
            year=dice.randint(1900, 2025),
            pages=dice.randint(60, 900),
            summary=f"A {dice.choice(ADJECTIVES).lower()} book about a "
            f"{dice.choice(NOUNS).lower()}, in {dice.randint(8, 40)} chapters.",
        )

    def create_loans(self, dice):
        """A history for each generated book that has none; the last loan may still be open."""
        books = Book.objects.filter(isbn__startswith="97900000").order_by("isbn")
        loans = []
        for book in books.exclude(loans__isnull=False):
            day = FIRST_DAY
            for left in reversed(range(dice.randint(4, LOANS_PER_BOOK_MAX))):
                day += datetime.timedelta(days=dice.randint(1, 90))
                back = day + datetime.timedelta(days=dice.randint(2, 40))
                is_open = left == 0 and dice.random() < 0.2
                reader = f"{dice.choice(READERS)} {dice.choice(LAST_NAMES)}"
                loans.append(
                    Loan(
                        book=book,
                        reader=reader,
                        taken=day,
                        returned=None if is_open else back,
                    )
                )
                day = back
        Loan.objects.bulk_create(loans, batch_size=1000)
