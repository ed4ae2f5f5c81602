"""What the library knows."""

from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.urls import reverse
from django.utils import timezone

from .isbn import validate_isbn


class Author(models.Model):
    """Who wrote a book."""

    name = models.CharField(max_length=120, unique=True)
    born = models.PositiveSmallIntegerField(null=True, blank=True)

    class Meta:
        ordering = ["name"]

    def __str__(self):
        return self.name


class Book(models.Model):
    """One book on the shelf; the library owns one copy of each."""

    title = models.CharField(max_length=200)
    author = models.ForeignKey(Author, on_delete=models.PROTECT, related_name="books")
    isbn = models.CharField("ISBN", max_length=13, unique=True, validators=[validate_isbn])
    year = models.PositiveSmallIntegerField(
        validators=[MinValueValidator(1450), MaxValueValidator(2100)]
    )
    pages = models.PositiveIntegerField(validators=[MinValueValidator(1)])
    summary = models.TextField(blank=True, max_length=4000)

    class Meta:
        ordering = ["title", "pk"]

    def __str__(self):
        return self.title

    def get_absolute_url(self):
        """The book's page."""
        return reverse("library:book", args=[self.pk])


class Loan(models.Model):
    """A book in somebody's hands; without a return date it is still there."""

    book = models.ForeignKey(Book, on_delete=models.CASCADE, related_name="loans")
    reader = models.CharField(max_length=120)
    taken = models.DateField(default=timezone.localdate)
    returned = models.DateField(null=True, blank=True)

    class Meta:
        ordering = ["-taken", "-pk"]
        constraints = [
            models.UniqueConstraint(
                fields=["book"],
                condition=models.Q(returned__isnull=True),
                name="one_open_loan_per_book",
                violation_error_message="This book is lent already.",
            ),
        ]

    def __str__(self):
        return f"{self.book} → {self.reader}"


class Document(models.Model):
    """A file that belongs to a book: a scan, a review, a cover."""

    book = models.ForeignKey(Book, on_delete=models.CASCADE, related_name="documents")
    name = models.CharField(max_length=200, editable=False)
    file = models.FileField(upload_to="documents/%Y/%m/")
    size = models.PositiveBigIntegerField(editable=False, help_text="In bytes.")
    uploaded = models.DateTimeField(default=timezone.now, editable=False)
    uploaded_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, editable=False
    )

    class Meta:
        ordering = ["-uploaded", "-pk"]

    def __str__(self):
        return self.name

    def save(self, *args, **kwargs):
        """Keeps the name and the size beside the path, so that a list does not ask the disk."""
        if self.file and not self.file._committed:
            self.name = self.file.name[:200]
            self.size = self.file.size
        super().save(*args, **kwargs)
