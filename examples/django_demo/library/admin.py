"""The admin's view of the library."""

from django.contrib import admin
from django.db.models import Count

from .models import Author, Book, Document, Loan


class LoanInline(admin.TabularInline):
    """Who had the book."""

    model = Loan
    extra = 0


class DocumentInline(admin.TabularInline):
    """What belongs to the book."""

    model = Document
    extra = 0
    readonly_fields = ["name", "size", "uploaded", "uploaded_by"]


@admin.register(Author)
class AuthorAdmin(admin.ModelAdmin):
    """Authors."""

    list_display = ["name", "born", "book_count"]
    search_fields = ["name"]

    def get_queryset(self, request):
        """With the number of books, in one query."""
        return super().get_queryset(request).annotate(books_total=Count("books"))

    @admin.display(description="books", ordering="books_total")
    def book_count(self, author):
        """How many books of theirs are on the shelf."""
        return author.books_total


@admin.register(Book)
class BookAdmin(admin.ModelAdmin):
    """Books, with their loans and documents."""

    list_display = ["title", "author", "isbn", "year", "pages"]
    list_select_related = ["author"]
    list_filter = ["year"]
    search_fields = ["title", "author__name", "isbn"]
    autocomplete_fields = ["author"]
    inlines = [LoanInline, DocumentInline]


@admin.register(Loan)
class LoanAdmin(admin.ModelAdmin):
    """Loans."""

    list_display = ["book", "reader", "taken", "returned"]
    list_select_related = ["book"]
    list_filter = [("returned", admin.EmptyFieldListFilter), "taken"]
    date_hierarchy = "taken"
    search_fields = ["book__title", "reader"]
    autocomplete_fields = ["book"]


@admin.register(Document)
class DocumentAdmin(admin.ModelAdmin):
    """Documents."""

    list_display = ["name", "book", "size", "uploaded", "uploaded_by"]
    list_select_related = ["book", "uploaded_by"]
    readonly_fields = ["name", "size", "uploaded", "uploaded_by"]
    autocomplete_fields = ["book"]
    search_fields = ["name", "book__title"]
