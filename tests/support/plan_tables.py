"""The facts and tables of a plan's JSON, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hloom.passes.framework.tables import Cell, Table


def tables(plan: Mapping[str, Any]) -> dict[str, Table]:
    """The tables of a plan's JSON by their titles."""
    found = [Table.from_json(each) for each in plan["tables"]]
    return {table.title: table for table in found}


def rows(plan: Mapping[str, Any], title: str) -> list[dict[str, Cell]]:
    """The rows of a table by the headings of its columns; none where there is no such table."""
    found = tables(plan).get(title)
    if found is None:
        return []
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]
