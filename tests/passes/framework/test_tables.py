"""Facts and tables of plans: their JSON is read back, and what it takes is bounded."""

from __future__ import annotations

import json

import pytest
from jax.extend.mlir import ir

from hloom._jax.modules import make_context
from hloom.passes.framework.base import ListPlan, PlanBase
from hloom.passes.framework.structure import read, written
from hloom.passes.framework.tables import (
    MOST_ROWS,
    Described,
    Fact,
    Kind,
    Left,
    Table,
    facts_of,
    left_table,
    rows_of,
    shown,
)
from hloom.passes.ir.names import SourceLine

pytestmark = pytest.mark.once

VALUE = Described("jit(f)/mul", SourceLine("train.py:3", "lib.py:7"), "tensor<4xf32>", 16, "a.mul")


class Moved:
    """A decision, for tests."""

    def __init__(self, number: int) -> None:
        self.id, self.description = f"move-{number}", f"number {number} is moved"


def test_the_json_of_a_table_is_read_back() -> None:
    table = Table(
        "Moved",
        {"takes": Kind.BYTES, "value": Kind.VALUE, "why": Kind.TEXT},
        ((16, VALUE, "large"), (None, (VALUE, "x"), ("a", "b"))),
        "Above.",
        (0, 1),
        3,
    )
    assert read(Table, json.loads(json.dumps(table.to_json()))) == table
    fact = Fact("moved", 0.5, Kind.SHARE)
    assert read(Fact, written(fact)) == fact
    assert str(fact) == "moved: 50 %"


def test_a_long_table_is_cut_and_counted() -> None:
    table = Table("Numbers", {"n": Kind.COUNT}, tuple((n,) for n in range(MOST_ROWS + 5)), more=1)
    found = read(Table, table.to_json())
    assert (len(found.rows), found.more) == (MOST_ROWS, 6)
    left = [Left(VALUE, f"reason {n}") for n in range(5)]
    assert (len(left_table(left, most=2).rows), left_table(left, most=2).more) == (2, 3)
    assert str(left[0]) == ("16 B in tensor<4xf32> of mul (jit(f)/mul, train.py:3): reason 0")


def test_a_plan_of_decisions_states_them() -> None:
    plan = ListPlan((Moved(0), Moved(1)), (Left(VALUE, "too small"),))
    told = plan.to_json()
    assert [row["what"] for row in rows_of(told, "Decided")] == [
        "number 0 is moved",
        "number 1 is moved",
    ]
    assert [row["why"] for row in rows_of(told, "Left as it is")] == ["too small"]
    assert rows_of(told, "not there") == []
    assert [decision.id for decision in plan.decisions()] == ["move-0", "move-1"]
    assert plan.restricted_to(["move-1"]).decided == plan.decided[1:]
    assert plan.restricted_to([]).empty


def test_facts_are_the_summary_of_a_plan_without_words_of_its_own() -> None:
    class Plan(PlanBase):
        empty = False

        def facts(self) -> tuple[Fact, ...]:
            return (Fact("moved", 3), Fact("bytes", 2048, Kind.BYTES))

    assert Plan().summary() == Plan().effect() == "moved: 3, bytes: 2.00 KiB"
    assert facts_of(Plan().to_json()) == {"moved": 3, "bytes": 2048}
    assert Plan().to_json()["tables"] == []


def test_operations_and_values_are_described() -> None:
    text = """
    func.func @main(%x: tensor<4x2xf32>) -> tensor<4x2xf32> {
      %0 = stablehlo.add %x, %x : tensor<4x2xf32> loc("jit(f)/add"("train.py":12:0))
      return %0 : tensor<4x2xf32>
    }
    """
    with make_context():
        module = ir.Module.parse(text)
        block = module.body.operations[0].regions[0].blocks[0]
        op = block.operations[0].operation
        found = Described.of(op)
        assert found == Described.of(op.results[0])
        assert (found.name, found.bytes, found.operation) == ("jit(f)/add", 32, "stablehlo.add")
        assert str(found) == "tensor<4x2xf32> of add (jit(f)/add, train.py:12)"
        assert Described.of(op, 8).bytes == 8
        assert Described.of(block.arguments[0]).operation == ""
        assert str(Described.at(op.location)) == "an operation (jit(f)/add, train.py:12)"
        assert found.called("a value") == "32 B of jit(f)/add (train.py:12)"


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (None, Kind.BYTES, ""),
        (2048, Kind.BYTES, "2.00 KiB"),
        (0.25, Kind.SHARE, "25 %"),
        (2e-3, Kind.SECONDS, "2.00 ms"),
        (3e9, Kind.FLOPS, "3.00 GFLOP"),
        (12345, Kind.COUNT, "12,345"),
        ("f{x}", Kind.CODE, "f{x}"),
    ],
)
def test_cells_for_people(value: int | str | None, kind: Kind, text: str) -> None:
    assert shown(value, kind) == text
