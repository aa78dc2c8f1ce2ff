"""The wording of counts and sizes in messages."""

from __future__ import annotations

import pytest

from hloom.passes.framework.text import pluralize, size


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 bytes"), (1, "1 byte"), (2, "2 bytes"), (101, "101 bytes")]
)
def test_one_of_a_thing_has_no_plural(number: int, text: str) -> None:
    assert pluralize(number, "byte") == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (10 * 2**10 - 1, "10.0 KiB"),
        (10 * 2**10, "10.0 KiB"),
        (100 * 2**10 - 1, "100 KiB"),
        (3 * 2**19, "1.50 MiB"),
        (int(12.17 * 2**20), "12.2 MiB"),
        (int(12.65 * 2**20), "12.6 MiB"),
        (80 * 2**30, "80.0 GiB"),
        (537 * 2**30, "537 GiB"),
        (3 * 2**40, "3.00 TiB"),
    ],
)
def test_a_size_has_three_digits(size_bytes: int, text: str) -> None:
    assert size(size_bytes) == text
