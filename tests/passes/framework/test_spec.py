"""Specs: every diagnostic word for word, and the round trip."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import registering
from support import toy_passes as toy

from hloom.passes.framework import options, registry
from hloom.passes.framework.errors import SpecError
from hloom.passes.framework.options import (
    Budget,
    Bytes,
    option,
    options_of,
    parse_bytes,
    print_bytes,
)
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.spellings import rounded_up

_toys = registering(toy.Toy, toy.Touch, scope="module")


@pytest.mark.parametrize("spec", ["", "  ", "off", " off "])
def test_specs_of_no_pass(spec: str) -> None:
    pipeline = Pipeline.parse(spec)
    assert pipeline.passes == ()
    assert str(pipeline) == "off"


@pytest.mark.parametrize(
    ("spec", "passes", "printed"),
    [
        ("toy", (toy.Toy(),), "toy"),
        ("toy{}", (toy.Toy(),), "toy"),
        ("toy,touch,toy", (toy.Toy(), toy.Touch(), toy.Toy()), "toy,touch,toy"),
        (" toy { limit = 3 } ,\ttouch\n", (toy.Toy(limit=3), toy.Touch()), "toy{limit=3},touch"),
        ("toy{limit=8 loud=off}", (toy.Toy(),), "toy"),
        ("toy{loud=on limit=+7}", (toy.Toy(limit=7, loud=True),), "toy{limit=7 loud=on}"),
        ("toy{size=1.5GiB}", (toy.Toy(size=Bytes(3 * 2**29)),), "toy{size=1.5GiB}"),
        ("toy{size=0}", (toy.Toy(size=Bytes(0)),), "toy{size=0}"),
        ("toy{weight=.5e1}", (toy.Toy(weight=5.0),), "toy{weight=5.0}"),
        ("toy{budget=60GiB}", (toy.Toy(budget=Budget(60 * 2**30)),), "toy{budget=60GiB}"),
        ("toy{budget=50%}", (toy.Toy(budget=Budget(percent=50)),), "toy{budget=50%}"),
        ("toy{budget=12.50%}", (toy.Toy(budget=Budget(percent=12.5)),), "toy{budget=12.5%}"),
        ("toy{budget=60GB}", (toy.Toy(budget=Budget(60 * 10**9)),), "toy{budget=60GB}"),
        ("toy{budget=0%}", (toy.Toy(budget=Budget(percent=0)),), "toy{budget=0%}"),
        ("toy{budget=min}", (toy.Toy(budget=Budget(percent=0, least=True)),), "toy{budget=min}"),
        ("toy{budget=fit}", (toy.Toy(budget=Budget()),), "toy{budget=fit}"),
        ("toy{mode=small-first}", (toy.Toy(mode="small-first"),), "toy{mode=small-first}"),
    ],
)
def test_reads_and_prints(spec: str, passes: tuple[Any, ...], printed: str) -> None:
    pipeline = Pipeline.parse(spec)
    assert pipeline.passes == passes
    assert str(pipeline) == printed


def test_default_is_the_recommended_passes() -> None:
    recommended = Pipeline.parse(registry.DEFAULT)
    assert recommended.passes
    assert Pipeline.parse("default") == recommended
    assert Pipeline.parse("default,touch").passes == (*recommended.passes, toy.Touch())
    assert str(Pipeline.parse("default")) == str(recommended)


SIZES = st.integers(0, 2**45).map(Bytes)
BUDGETS = st.one_of(
    st.integers(1, 2**45).map(Budget),
    st.floats(0, 100).map(lambda percent: Budget(percent=percent)),
    st.just(Budget()),
    st.just(Budget(percent=0, least=True)),
)
TOYS = st.builds(
    toy.Toy,
    limit=st.integers(-5, 100),
    ratio=st.floats(0, 1e300),
    weight=st.floats(allow_nan=False, allow_infinity=False),
    loud=st.booleans(),
    mode=st.sampled_from(["fast", "small-first"]),
    size=SIZES,
    room=st.integers(2**20, 2**45).map(Bytes),
    budget=st.none() | BUDGETS,
)


@given(st.lists(TOYS | st.just(toy.Touch()), max_size=4))
def test_a_printed_pipeline_parses_back(passes: list[Any]) -> None:
    pipeline = Pipeline(tuple(passes))
    again = Pipeline.parse(str(pipeline))
    assert again == pipeline
    assert str(again) == str(pipeline)


@given(st.text(alphabet="toy{}=, limitsz1KiB\t", max_size=20) | st.text(max_size=20))
def test_any_text_is_a_pipeline_or_a_spec_error(spec: str) -> None:
    try:
        pipeline = Pipeline.parse(spec)
    except SpecError as error:
        assert str(error).startswith(f"spec={spec!r}: ")  # noqa: PT017
    else:
        assert Pipeline.parse(str(pipeline)) == pipeline


@given(SIZES)
def test_a_printed_size_parses_back(size_bytes: Bytes) -> None:
    assert parse_bytes(print_bytes(size_bytes)) == size_bytes


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("4096", 4096),
        ("7B", 7),
        ("4KiB", 4096),
        ("4KB", 4000),
        ("1.5GiB", 1610612736),
        ("1.5GB", 1500000000),
        ("0.25TiB", 2**38),
        (f"{2**63 - 1}", 2**63 - 1),
    ],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0"),
        (1001, "1001"),
        (1000, "1KB"),
        (1024, "1KiB"),
        (1536 * 2**20, "1.5GiB"),
        (1537 * 2**20, "1537MiB"),
        (96000 * 2**10, "93.75MiB"),
        (98356428, "93.8MiB"),
        (98356429, "98356429"),
        (60 * 10**9, "60GB"),
        (2**50, "1024TiB"),
    ],
)
def test_sizes_print_in_the_shortest_exact_spelling(size_bytes: int, text: str) -> None:
    assert print_bytes(size_bytes) == text


@given(st.integers(1, 2**62), st.integers(0, 2**40))
def test_a_size_reads_back_and_is_rounded_up_to_a_short_one(size: int, grain: int) -> None:
    assert parse_bytes(print_bytes(size)) == size
    rounded = rounded_up(size, grain)
    assert size <= rounded <= size + grain
    assert parse_bytes(print_bytes(rounded)) == rounded


@pytest.mark.parametrize(
    ("size", "grain", "text"),
    [
        (96000 * 2**10, 2**18, "93.8MiB"),
        (680352 * 2**10, 2**20, "665MiB"),
        (63 * 2**30 + 5, 2**30, "64GiB"),
        (63 * 2**30 + 5, 2**27, "63.1GiB"),
        (700, 64, "700"),
    ],
)
def test_a_round_size_is_one_that_people_write(size: int, grain: int, text: str) -> None:
    assert print_bytes(rounded_up(size, grain)) == text


def test_options_are_described() -> None:
    limit, *_, size, room, budget = options_of(toy.Toy)
    assert dataclasses.astuple(limit)[:5] == ("limit", int, 8, "How many.", "things")
    assert (size.name, size.wants) == ("size", "a size in bytes such as 4KiB or 60GiB")
    assert room.shown_default == "1GiB"
    assert (budget.shown_default, budget.type, budget.optional) == ("not given", Budget, True)
    assert budget.wants == "a size such as 60GiB, a share such as 50%, fit, or min"


def test_mistakes_of_an_author_of_a_pass() -> None:
    @dataclasses.dataclass(frozen=True)
    class Plain:
        limit: int = 3

    @dataclasses.dataclass(frozen=True)
    class NoSpelling:
        limit: complex = option(1j, doc="")

    @dataclasses.dataclass(frozen=True)
    class AnyText:
        title: str = option("a", doc="")

    @dataclasses.dataclass(frozen=True)
    class BadDefault:
        limit: int = option(3, doc="", maximum=2)

    @dataclasses.dataclass(frozen=True)
    class GivenByDefault:
        limit: int | None = option(3, doc="")

    for cls, expected in (
        (GivenByDefault, "GivenByDefault.limit: options of type int | None have no spelling in "),
        (Plain, "Plain.limit is not declared with option(...)"),
        (NoSpelling, "NoSpelling.limit: options of type <class 'complex'> have no spelling in "),
        (
            AnyText,
            "AnyText.title: str and Words options, and only they, have choices, each a plain word",
        ),
        (BadDefault, "BadDefault.limit: its default 3 is not a whole number, at most 2"),
    ):
        with pytest.raises(TypeError) as caught:
            options.options_of(cls)
        assert str(caught.value).startswith(expected)
