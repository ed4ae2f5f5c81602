"""The application's addresses."""

from django.urls import path

from . import probes, views

app_name = "library"
urlpatterns = [
    path("", views.books, name="books"),
    path("books/add/", views.book_add, name="book-add"),
    path("books/<int:pk>/", views.book, name="book"),
    path("books/<int:pk>/edit/", views.book_edit, name="book-edit"),
    path("books/<int:pk>/lend/", views.lend, name="lend"),
    path("books/<int:pk>/return/", views.give_back, name="give-back"),
    path("books/<int:pk>/upload/", views.upload, name="upload"),
    path("documents/<int:pk>/", views.download, name="download"),
    path("loans.csv", views.loans_csv, name="loans-csv"),
    path("facts/", probes.facts, name="facts"),
    path("slow/", probes.slow, name="slow"),
    path("boom/", probes.boom, name="boom"),
]
