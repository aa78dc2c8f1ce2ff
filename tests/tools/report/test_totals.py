"""Totals of the peak by layer, and of arguments by what they are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hloom.passes.ir.names import SourceLine
from hloom_tools.document.sources import Named, SourcePlace, Sources
from hloom_tools.report.totals import MOST_ROWS, Total, by_argument, by_layer

pytestmark = pytest.mark.once

MIB = 2**20


def named(*scopes: str) -> Named:
    return Named("/".join(("jit(step)", *scopes, "add")), SourcePlace(""))


def test_layers_are_divided_until_the_table_is_full() -> None:
    values = [(named(f"jvp(GPT)/Block_{n}/Attention_0"), 4 * MIB) for n in range(4)]
    values += [
        (named(f"transpose(jvp(GPT))/Block_{n}/MLP_0/Dense_{m}"), MIB)
        for n in range(4)
        for m in (0, 1)
    ]
    values += [(named("jvp(GPT)/Block_0"), MIB), (named("jvp(GPT)/head"), 2 * MIB)]
    assert by_layer(values) == (
        Total("GPT/Block/Attention", 16 * MIB, 4),
        Total("GPT/Block/MLP/Dense", 8 * MIB, 8),
        Total("GPT/head", 2 * MIB, 1),
        Total("GPT/Block, outside of these", MIB, 1),
    )


def test_a_table_has_no_more_than_its_rows() -> None:
    values = [(named("net", f"part{chr(97 + n)}"), (30 - n) * MIB) for n in range(20)]
    assert by_layer(values) == (Total("net", sum(size for _, size in values), 20),)
    roots = [(named(f"part{chr(97 + n)}"), (30 - n) * MIB) for n in range(20)]
    rows = by_layer(roots)
    assert len(rows) == MOST_ROWS + 1
    assert rows[-1].name == "12 others"
    assert sum(row.size_bytes for row in rows) == sum(size for _, size in roots)
    assert sum(row.count for row in rows) == 20


def test_what_is_very_small_is_in_the_last_row() -> None:
    values = [(named("a"), 1000), (named("b"), 5), (named("c"), 4)]
    assert by_layer(values) == (Total("a", 1000, 1), Total("2 others", 9, 2))


def test_without_scopes_it_is_functions_lines_and_libraries() -> None:
    sources = Sources({})

    def at(line: int, library: str = "") -> Named:
        found = library and f"/v/site-packages/{library}.py:7"
        source = SourceLine(f"/home/train.py:{line}", found, "main.<locals>.Block.__call__")
        return Named("jit(step)/jvp()/while/body/add", sources.place(source))

    values = [
        (at(27, "flax/attention"), 50),
        (at(28, "flax/linear"), 30),
        (at(28), 15),
        (Named("", sources.place(SourceLine("/home/train.py:5", "", "<module>"))), 10),
        (Named("", sources.place(SourceLine())), 5),
    ]
    assert [(row.name, row.size_bytes) for row in by_layer(values)] == [
        ("Block.__call__, train.py:27, in flax/attention.py", 50),
        ("Block.__call__, train.py:28, in flax/linear.py", 30),
        ("Block.__call__, train.py:28, outside of these", 15),
        ("train.py:5", 10),
        ("no source line", 5),
    ]


def test_arguments_are_told_by_their_paths() -> None:
    def arguments() -> Iterator[tuple[str, int]]:
        for part in ("params", "opt_state[0].mu", "opt_state[0].nu"):
            for n in range(3):
                yield f"state.{part}['layer_{n}']['kernel']", 4 * MIB
        yield "state.step", MIB
        yield "batch['tokens']", 2 * MIB
        yield "", MIB

    assert by_argument(list(arguments())) == (
        Total("state.opt_state[0].mu", 12 * MIB, 3),
        Total("state.opt_state[0].nu", 12 * MIB, 3),
        Total("state.params", 12 * MIB, 3),
        Total("batch", 2 * MIB, 1),
        Total("state.step", MIB, 1),
        Total("without a name", MIB, 1),
    )
    assert by_argument([]) == ()
