"""ISBN-13: the check digit, once, for the validator and for the generated data."""

from django.core.exceptions import ValidationError


def check_digit(first_twelve: str) -> str:
    """The thirteenth digit: the one that makes the weighted sum a multiple of ten."""
    total = sum(int(digit) * (3 if place % 2 else 1) for place, digit in enumerate(first_twelve))
    return str(-total % 10)


def validate_isbn(value: str) -> None:
    """Refuses what is not thirteen digits with a right check digit."""
    if len(value) != 13 or not (value.isascii() and value.isdigit()):
        raise ValidationError(
            "An ISBN has 13 digits, without dashes: “%(value)s” has not.", params={"value": value}
        )
    expected = check_digit(value[:12])
    if value[12] != expected:
        raise ValidationError(
            "The check digit should be %(expected)s, not %(found)s.",
            params={"expected": expected, "found": value[12]},
        )
