"""What people type, checked."""

from django import forms
from django.conf import settings
from django.core.exceptions import ValidationError
from django.template.defaultfilters import filesizeformat

from .models import Book, Document, Loan


class IsbnField(forms.CharField):
    """An ISBN as it is printed: dashes and spaces are taken out before anything is checked."""

    def to_python(self, value):
        """The bare digits."""
        return super().to_python(value).replace("-", "").replace(" ", "")


class BookForm(forms.ModelForm):
    """Adds or changes a book."""

    isbn = IsbnField(label="ISBN", help_text="Thirteen digits; dashes are fine.")

    class Meta:
        model = Book
        fields = ["title", "author", "isbn", "year", "pages", "summary"]
        widgets = {"summary": forms.Textarea(attrs={"rows": 5})}


class LoanForm(forms.ModelForm):
    """Lends a book."""

    class Meta:
        model = Loan
        fields = ["reader"]
        labels = {"reader": "Reader's name"}


class DocumentForm(forms.ModelForm):
    """Uploads a file."""

    class Meta:
        model = Document
        fields = ["file"]

    def clean_file(self):
        """Refuses what is larger than the library keeps."""
        file = self.cleaned_data["file"]
        limit = settings.LIBRARY_DOCUMENT_BYTES_MAX
        if file.size > limit:
            raise ValidationError(
                "This file has %(size)s; the library keeps up to %(limit)s.",
                params={"size": filesizeformat(file.size), "limit": filesizeformat(limit)},
            )
        return file
