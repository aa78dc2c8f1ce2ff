"""What `remat` tells people."""

from __future__ import annotations

import pytest

from hloom.passes.remat.describe import describe_floor
from hloom.passes.wording import counted


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 bytes"), (1, "1 byte"), (2, "2 bytes"), (101, "101 bytes")]
)
def test_one_of_a_thing_has_no_plural(number: int, text: str) -> None:
    assert counted(number, "byte") == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (1, "1 byte"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (10 * 2**10 - 1, "10.0 KiB"),
        (10 * 2**10, "10 KiB"),
        (3 * 2**19, "1.5 MiB"),
        (80 * 2**30, "80 GiB"),
    ],
)
def test_a_floor_is_told_in_sizes_for_people(size_bytes: int, text: str) -> None:
    told = describe_floor({"peak": []}, "the memory of the step", 5, size_bytes)
    assert told == (
        f"the memory of the step cannot be held to {text}; the least that was reached is 5 bytes, "
        "which is compiled"
    )


def test_a_floor_names_its_largest_owners() -> None:
    owner = {"bytes": 2048, "type": "tensor<512xf32>", "name": "jvp(f)/tanh", "source": "a.py:7"}
    argument = owner | {"bytes": 1, "type": "tensor<i8>", "name": "", "source": ""}
    told = describe_floor({"peak": [owner, argument]}, "temporary memory", 2049, 1)
    assert told.endswith(
        "Most of it is in 2.0 KiB tensor<512xf32> of jvp(f)/tanh (a.py:7); "
        "1 byte tensor<i8> of an argument"
    )
