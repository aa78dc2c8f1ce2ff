"""Modules of one custom call, or of two on different devices, written as text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

RANKS = 4

TOKEN = "tensor<ui32>"

_T = TypeVar("_T")


@dataclass(frozen=True)
class Call:
    """A custom call, by the types of its operands and results.

    Attributes:
      values: by operand, what it holds: a number for all elements, a list, "rows" (in row r of
        rank s, r + s everywhere) or "rank" (the number of the rank everywhere).
      aliases: pairs of a result and the operand whose buffer it takes over.
    """

    target: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    attributes: Mapping[str, str] = field(hash=False)
    values: tuple[int | str | tuple[int, ...], ...]
    aliases: tuple[tuple[int, int], ...] = ()

    @property
    def name(self) -> str:
        """What errors call it."""
        return self.target.removesuffix(".v1")

    def with_operands(self, *others: tuple[int, str]) -> Call:
        operands = list(self.operands)
        for index, type_ in others:
            operands[index] = type_
        return replace(self, operands=tuple(operands))

    def with_results(self, *others: tuple[int, str]) -> Call:
        results = list(self.results)
        for index, type_ in others:
            results[index] = type_
        return replace(self, results=tuple(results))

    def with_values(self, *others: tuple[int, int | str | tuple[int, ...]]) -> Call:
        values = list(self.values)
        for index, value in others:
            values[index] = value
        return replace(self, values=tuple(values))

    def with_attribute(self, name: str, text: str | None) -> Call:
        others = {key: value for key, value in self.attributes.items() if key != name}
        return replace(self, attributes=others if text is None else others | {name: text})

    def without_operand(self, index: int) -> Call:
        operands, values = _without(self.operands, index), _without(self.values, index)
        return replace(self, operands=operands, values=values, aliases=())

    def without_result(self, index: int) -> Call:
        return replace(self, results=_without(self.results, index), aliases=())

    def plus_operand(self, type_: str) -> Call:
        operands = (*self.operands, type_)
        return replace(self, operands=operands, values=(*self.values, 0), aliases=())

    def plus_result(self, type_: str) -> Call:
        return replace(self, results=(*self.results, type_), aliases=())

    def bare(self) -> Call:
        """The call with buffers of their own for its results."""
        return replace(self, aliases=())


def module_of(call: Call) -> str:
    """A module in which every rank makes the call and gives its results."""
    names = ", ".join(f"%r#{index}" for index in range(len(call.results)))
    types = ", ".join(call.results)
    if not call.results:
        # Errors come with results: give the rank.
        names, types = "%rank", TOKEN
    return _main([*_lines(call), f"return {names} : {types}"], types)


def module_of_two(first: Call, second: Call) -> str:
    """A module in which ranks 0 and 1 make one call and the others the other; gives the tokens."""
    regions = []
    for call in (first, second):
        given = f"stablehlo.return %r#{call.results.index(TOKEN)} : {TOKEN}"
        regions.append("{\n" + "\n".join([*_lines(call), given]) + "\n}")
    return _main(
        [
            f"%two = stablehlo.constant dense<2> : {TOKEN}",
            f"%is_first = stablehlo.compare LT, %rank, %two : ({TOKEN}, {TOKEN}) -> tensor<i1>",
            f'%r = "stablehlo.if"(%is_first) ({", ".join(regions)}) : (tensor<i1>) -> {TOKEN}',
            f"return %r : {TOKEN}",
        ],
        TOKEN,
    )


def _without(values: tuple[_T, ...], index: int) -> tuple[_T, ...]:
    return values[:index] + values[index + 1 :]


def _main(lines: Sequence[str], results: str) -> str:
    body = "\n".join([f"%rank = stablehlo.replica_id : {TOKEN}", *lines])
    return (
        f"module @m attributes {{mhlo.num_replicas = {RANKS} : i32, mhlo.num_partitions = 1 : i32}}"
        f" {{ func.func public @main() -> ({results}) {{\n{body}\n}} }}"
    )


def _lines(call: Call) -> list[str]:
    """The operands %v0…, and the call; its results are %r#0…."""
    operands = zip(call.operands, call.values, strict=True)
    made = [
        line
        for index, (type_, value) in enumerate(operands)
        for line in _operand(f"%v{index}", type_, value)
    ]
    names = ", ".join(f"%v{index}" for index in range(len(call.operands)))
    config = ", ".join(f"{key} = {text}" for key, text in call.attributes.items())
    aliases = ", ".join(
        "#stablehlo.output_operand_alias<output_tuple_indices = "
        f"[{result if len(call.results) > 1 else ''}], operand_index = {operand}, "
        "operand_tuple_indices = []>"
        for result, operand in call.aliases
    )
    left = f"%r:{len(call.results)} = " if call.results else ""
    return [
        *made,
        f'{left}"stablehlo.custom_call"({names}) {{call_target_name = "{call.target}", '
        f"api_version = 4 : i32, has_side_effect = true, backend_config = {{{config}}}, "
        f"output_operand_aliases = [{aliases}]}} : ({', '.join(call.operands)}) -> "
        f"({', '.join(call.results)})",
    ]


def _operand(name: str, type_: str, value: int | str | tuple[int, ...]) -> list[str]:
    """The lines that make an operand of whole numbers, converted to its element type."""
    found = re.fullmatch(r"tensor<((?:\d+x)*)(.+)>", type_)
    assert found, type_
    wide = f"tensor<{found[1]}i64>"
    if isinstance(value, int):
        made = [f"{name}_wide = stablehlo.constant dense<{_signed(value)}> : {wide}"]
    elif isinstance(value, tuple) and found[1] == f"{len(value)}x":
        made = [f"{name}_wide = stablehlo.constant dense<{list(value)}> : {wide}"]
    elif isinstance(value, tuple):
        made = [f"{name}_wide = stablehlo.constant dense<0> : {wide}"]
    else:
        is_rows = value == "rows" and found[1]
        rows = "iota dim = 0" if is_rows else "constant dense<0>"
        made = [
            f"{name}_rank = stablehlo.convert %rank : ({TOKEN}) -> tensor<i64>",
            f"{name}_ranks = stablehlo.broadcast_in_dim {name}_rank, dims = [] "
            f": (tensor<i64>) -> {wide}",
            f"{name}_rows = stablehlo.{rows} : {wide}",
            f"{name}_wide = stablehlo.add {name}_ranks, {name}_rows : {wide}",
        ]
    return [*made, f"{name} = stablehlo.convert {name}_wide : ({wide}) -> {type_}"]


def _signed(value: int) -> int:
    """The number of the same 64 bits that an i64 spells."""
    return value - 2**64 if value >= 2**63 else value
