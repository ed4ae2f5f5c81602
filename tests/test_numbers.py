"""Each behaviour and each rule that the issues so far list is named by a test.

A name is `test_09_…` or `PRODUCTION 9` in a test's docstring, `test_rule_18_…`, `RULES 18` there, or
`rules_18_…` among the server's own tests.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).resolve().parent
BEHAVIOURS = [*range(1, 12), 17, 18, *range(20, 27), 28, 29, 30]
RULES = [*range(1, 9), 17, 18, 19, *range(24, 30)]

BEHAVIOUR_NAME = re.compile(r"test_(?:behaviour_|production_)?(\d+)_(?:and_(\d+)_)?")
RULE_NAME = re.compile(r"test_rule_(\d+)_")
RUST_TEST = re.compile(r"#\[test\]\n\s*fn rules_(\d+)_")


def python_tests() -> list[tuple[str, str]]:
    """Name and docstring of every test function of the suite."""
    found = []
    for file in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found.append((node.name, ast.get_docstring(node) or ""))
    return found


def named(kind: str, pattern: re.Pattern[str]) -> set[int]:
    """The numbers of a kind that tests name."""
    numbers: set[int] = set()
    for name, docstring in python_tests():
        if found := pattern.match(name):
            numbers |= {int(number) for number in found.groups() if number}
        for several in re.findall(rf"\b{kind} (\d+(?:(?:, | and )\d+)*)", docstring):
            numbers |= {int(number) for number in re.findall(r"\d+", several)}
    return numbers


def test_every_behaviour_of_the_issue_has_a_test_that_names_it():
    assert sorted(set(BEHAVIOURS) - named("PRODUCTION", BEHAVIOUR_NAME)) == []


def test_every_rule_of_the_issue_has_a_test_that_names_it():
    sources = (TESTS.parent / "server" / "src").rglob("*.rs")
    in_rust = {int(n) for file in sources for n in RUST_TEST.findall(file.read_text())}
    assert sorted(set(RULES) - named("RULES", RULE_NAME) - in_rust) == []
