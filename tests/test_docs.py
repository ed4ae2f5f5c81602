"""What the documents name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_every_invariant_names_tests_that_exist():
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
    section = text.split("## Invariants, each with a test\n")[1].split("\n## ")[0]
    sources = [*(ROOT / "server").rglob("*.rs"), *(ROOT / "tests").glob("*.py")]
    defined = set()
    for source in sources:
        if "target" not in source.parts:
            defined |= set(re.findall(r"\b(?:fn|def) (\w+)\(", source.read_text()))
    items = re.split(r"\n(?=\d\. )", section.strip())
    assert len(items) == 9
    for item in items:
        names = re.findall(r"`(\w+_\w+_\w+)`", item)
        assert names and set(names) <= defined, item


def test_the_readme_asks_for_the_rust_that_cargo_asks_for():
    version = re.search(r'rust-version = "([\d.]+)"', (ROOT / "Cargo.toml").read_text())[1]
    assert f"Rust {version} or later" in (ROOT / "README.md").read_text()
    assert f"RUST={version} " in (ROOT / ".ci" / "setup").read_text()


def test_every_option_in_the_documents_exists():
    reference = (ROOT / "docs" / "reference.md").read_text()
    options = set(re.findall(r"`(--[a-z-]+)", reference)) | {"--help", "--version"}
    for page in ("README.md", "docs/deployment.md", "docs/django.md", "docs/logging.md", "docs/ARCHITECTURE.md"):
        text = (ROOT / page).read_text()
        used = set(re.findall(r"`(?:hoopsnake [^`]*)?(--[a-z-]+)", text))
        assert used - options <= {"--security-opt", "--blocking-threads"}, (page, used - options)
