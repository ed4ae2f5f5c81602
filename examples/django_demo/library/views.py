"""The library's pages."""

import csv

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.paginator import Paginator
from django.db import transaction
from django.db.models import Exists, OuterRef, Q
from django.http import FileResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from .forms import BookForm, DocumentForm, LoanForm
from .models import Book, Document, Loan

BOOKS_PER_PAGE = 25
RECENT_BOOKS_MAX = 5


@require_safe
def books(request):
    """The shelf: all books, or those that a search finds, page by page."""
    query = request.GET.get("q", "").strip()
    open_loans = Loan.objects.filter(book=OuterRef("pk"), returned__isnull=True)
    found = Book.objects.select_related("author").annotate(is_lent=Exists(open_loans))
    if query:
        found = found.filter(
            Q(title__icontains=query) | Q(author__name__icontains=query) | Q(isbn=query)
        )
    page = Paginator(found, BOOKS_PER_PAGE).get_page(request.GET.get("page"))
    return render(
        request,
        "library/books.html",
        {
            "page": page,
            "query": query,
            "pages": page.paginator.get_elided_page_range(page.number, on_each_side=2, on_ends=1),
            "recent": recent_books(request),
        },
    )


@require_safe
def book(request, pk):
    """One book, its loans and its documents. The session remembers that it was seen."""
    shown = get_object_or_404(Book.objects.select_related("author"), pk=pk)
    remember(request, shown)
    return render_book(request, shown)


@login_required
def book_add(request):
    """A new book."""
    form = BookForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        added = form.save()
        messages.success(request, f"“{added}” is on the shelf.")
        return redirect(added)
    return render(request, "library/book_form.html", {"form": form, "heading": "Add a book"})


@login_required
def book_edit(request, pk):
    """Changes a book."""
    changed = get_object_or_404(Book, pk=pk)
    form = BookForm(request.POST or None, instance=changed)
    if request.method == "POST" and form.is_valid():
        form.save()
        messages.success(request, f"“{changed}” was changed.")
        return redirect(changed)
    heading = f"Edit “{changed}”"
    return render(request, "library/book_form.html", {"form": form, "heading": heading})


@login_required
@require_POST
def lend(request, pk):
    """Lends a book to a reader, unless somebody has it."""
    form = LoanForm(request.POST, instance=Loan(book_id=pk))
    # The transaction takes the write lock at its start, so nobody lends the book in between.
    with transaction.atomic():
        lent = get_object_or_404(Book, pk=pk)
        if not form.is_valid():
            status = 400
        elif lent.loans.filter(returned__isnull=True).exists():
            form.add_error(None, "This book is lent already.")
            status = 409
        else:
            form.save()
            messages.success(request, f"Lent to {form.cleaned_data['reader']}.")
            return redirect(lent)
    return render_book(request, lent, loan_form=form, status=status)


@login_required
@require_POST
def give_back(request, pk):
    """Takes a book back."""
    returned = get_object_or_404(Book, pk=pk)
    count = returned.loans.filter(returned__isnull=True).update(returned=timezone.localdate())
    if count:
        messages.success(request, "Returned. Thank you.")
    else:
        messages.info(request, "Nobody had this book.")
    return redirect(returned)


@login_required
@require_POST
def upload(request, pk):
    """Keeps a file with a book."""
    owner = get_object_or_404(Book, pk=pk)
    form = DocumentForm(
        request.POST, request.FILES, instance=Document(book=owner, uploaded_by=request.user)
    )
    if form.is_valid():
        document = form.save()
        messages.success(request, f"“{document}” was uploaded: {document.size} bytes.")
        return redirect(owner)
    return render_book(request, owner, document_form=form, status=400)


@require_safe
def download(request, pk):
    """Sends a file as it was uploaded; the server sends it from the file itself."""
    document = get_object_or_404(Document, pk=pk)
    return FileResponse(document.file.open("rb"), as_attachment=True, filename=document.name)


@require_safe
def loans_csv(request):
    """Every loan as CSV, row by row as the database delivers them: no list of all is made."""
    loans = Loan.objects.select_related("book__author").order_by("pk")
    writer = csv.writer(Echo())

    def rows():
        yield writer.writerow(["loan", "isbn", "title", "author", "reader", "taken", "returned"])
        for loan in loans.iterator(chunk_size=500):
            yield writer.writerow(
                [
                    loan.pk,
                    loan.book.isbn,
                    loan.book.title,
                    loan.book.author.name,
                    loan.reader,
                    loan.taken.isoformat(),
                    loan.returned.isoformat() if loan.returned else "",
                ]
            )

    return StreamingHttpResponse(
        rows(),
        content_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": 'attachment; filename="loans.csv"'},
    )


class Echo:
    """A file for csv.writer that hands each row back instead of keeping it."""

    def write(self, row):
        """The row."""
        return row


def render_book(request, shown, *, loan_form=None, document_form=None, status=200):
    """The book's page, with a form that was refused if there is one."""
    loans = list(shown.loans.all()[:10])
    return render(
        request,
        "library/book.html",
        {
            "book": shown,
            "loans": loans,
            "open_loan": next((loan for loan in loans if loan.returned is None), None),
            "documents": shown.documents.select_related("uploaded_by"),
            "loan_form": loan_form or LoanForm(),
            "document_form": document_form or DocumentForm(),
            "views": request.session.get("book_views", 0),
        },
        status=status,
    )


def remember(request, shown):
    """Puts the book first in the session's list and counts the visit."""
    recent = [pk for pk in request.session.get("recent_books", []) if pk != shown.pk]
    request.session["recent_books"] = [shown.pk, *recent][:RECENT_BOOKS_MAX]
    request.session["book_views"] = request.session.get("book_views", 0) + 1


def recent_books(request):
    """The books this visitor looked at, the latest first."""
    recent = request.session.get("recent_books", [])
    if not recent:
        return []
    found = Book.objects.in_bulk(recent)
    return [found[pk] for pk in recent if pk in found]
