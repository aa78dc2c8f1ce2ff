"""Blocks of IR that tests write as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from jax.extend.mlir import ir

from hloom._jax.modules import make_context

BlockOf = Callable[..., ir.Block]


@pytest.fixture
def context() -> Iterator[ir.Context]:
    with make_context() as context, ir.Location.unknown():
        yield context


@pytest.fixture
def block_of(context: ir.Context) -> BlockOf:
    """Gives the block of a function with this body, which needs no terminator."""
    modules = []  # a block does not keep its module alive

    def parse(body: str, arguments: str = "") -> ir.Block:
        modules.append(ir.Module.parse(f"func.func @f({arguments}) {{\n{body}\nreturn\n}}"))
        return modules[-1].body.operations[0].regions[0].blocks[0]

    return parse


def last_value(block: ir.Block) -> ir.Value:
    """The first result of the last operation before the terminator."""
    return list(block.operations)[-2].operation.results[0]
