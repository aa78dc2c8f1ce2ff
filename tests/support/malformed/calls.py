"""Custom calls that no lowering writes: every target with wrong attributes, operands and results.

Each is an error with a text; a few look odd, and are nevertheless what they say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from support.malformed.call_modules import RANKS, TOKEN, Call, module_of, module_of_two

ROWS, SLICES = "tensor<8x4xf32>", "tensor<4xi32>"

ATTRIBUTES: Mapping[str, str] = {
    "channel": "1 : i64",
    "devices": "array<i64: 0, 1, 2, 3>",
    "group_size": "4 : i64",
    "replica_groups": "array<i64: 0, 1, 2, 3>",
    "site": '"a site of the test"',
    "timeout_ms": "20000 : i64",
}

BARRIER = Call(
    "hloom.barrier.v1", (TOKEN, ROWS), (TOKEN, ROWS), ATTRIBUTES, (0, "rows"), ((0, 0), (1, 1))
)
RAGGED = Call(
    "hloom.ragged_all_to_all.v1",
    (TOKEN, ROWS, ROWS, SLICES, SLICES, SLICES, SLICES),
    (ROWS, TOKEN),
    ATTRIBUTES,
    (0, "rows", 5, (0, 1, 2, 3), 1, "rank", 1),
    ((0, 2), (1, 0)),
)
TIE = Call("hloom.tie.v1", (TOKEN, ROWS), (ROWS,), {}, (0, "rows"), ((0, 1),))
AFTER = Call("hloom.after.v1", (TOKEN, ROWS), (TOKEN,), {}, (0, "rows"), ((0, 0),))
NEW_TOKEN = Call("hloom.token.v1", (), (TOKEN,), {}, ())

VECTORS = range(3, 7)
"""The operands of RAGGED that are offsets and sizes."""

LARGEST, LEAST = 2**63 - 1, -(2**63)

PASSED = [[rank + row for row in range(8)] for rank in range(RANKS)]
ZEROS = [0] * RANKS
RANK = list(range(RANKS))
EXCHANGED = [[rank + device for rank in range(RANKS)] + [5] * 4 for device in range(RANKS)]
"""By rank, what RAGGED gives: a row of each rank, and four that stay as they were."""
STAYED = [[5] * 8] * RANKS


@dataclass(frozen=True)
class Case:
    """A module, and the pattern of the error that it ends with, or its results by rank."""

    module: str
    error: str | None = None
    results: list[Any] | None = None


Named = Iterator[tuple[str, Case]]


def cases(kind: str) -> dict[str, Case]:
    """Every case of one of KINDS, by name."""
    named = list(KINDS[kind]())
    found = dict(named)
    assert len(found) == len(named)
    return found


def fails(call: Call, error: str) -> Case:
    return Case(module_of(call), error=error)


def runs(call: Call, results: list[Any]) -> Case:
    return Case(module_of(call), results=results)


def exchanging(type_: str) -> Call:
    """RAGGED of rows of another type."""
    return RAGGED.with_operands((1, type_), (2, type_)).with_results((0, type_))


def with_vectors(call: Call, type_: str) -> Call:
    return call.with_operands(*((index, type_) for index in VECTORS))


def valid_calls() -> Named:
    usual = {BARRIER: [ZEROS, PASSED], RAGGED: [EXCHANGED, ZEROS], TIE: [PASSED], AFTER: [ZEROS]}
    usual[NEW_TOKEN] = [ZEROS]
    for call, results in usual.items():
        yield call.name, runs(call, results)
        yield f"{call.name} without aliases", runs(call.bare(), results)
        more = call.with_attribute("more", "42 : i64")
        yield f"{call.name} with one more attribute", runs(more, results)
    yield "after with a token alone", runs(AFTER.without_operand(1), [ZEROS])
    yield "tie of nothing", runs(TIE.without_operand(1).without_result(0), [RANK])
    yield "barrier that keeps an operand", runs(BARRIER.plus_operand(SLICES), [ZEROS, PASSED])
    yield "barrier that keeps all", runs(BARRIER.without_result(1), [ZEROS])
    for channel in (0, -1, LARGEST, LEAST):
        call = BARRIER.with_attribute("channel", f"{channel} : i64")
        yield f"barrier on channel {channel}", runs(call, [ZEROS, PASSED])
    for name, text in {
        "timeout_ms": f"{LARGEST} : i64",
        "site": '"\\00\\FF\\FE%s%n"',
        "devices": "array<i64: 0, 1, 2, 3, 4, 5>",
    }.items():
        call = BARRIER.with_attribute(name, text)
        yield f"barrier with {name} {text}", runs(call, [ZEROS, PASSED])
    for element in ("i1", "i4", "ui2", "f8E4M3FN", "bf16", "f64", "complex<f64>"):
        type_ = f"tensor<8x3x{element}>"
        passed = PASSED if element not in ("i1", "i4", "ui2") else None
        call = BARRIER.with_operands((1, type_)).with_results((1, type_)).bare()
        yield f"barrier of {element}", runs(call, [ZEROS, passed])
        call = TIE.with_operands((1, type_)).with_results((0, type_)).bare()
        yield f"tie of {element}", runs(call, [passed])


def valid_exchanges() -> Named:
    for element in ("i4", "f8E4M3FN", "bf16", "f64", "complex<f64>"):
        call = exchanging(f"tensor<8x3x{element}>")
        yield f"ragged of {element}", runs(call, [EXCHANGED, ZEROS])
        yield f"ragged of {element} without aliases", runs(call.bare(), [EXCHANGED, ZEROS])
    for element in ("i8", "ui8", "i16", "ui16", "ui32", "i64", "ui64"):
        call = with_vectors(RAGGED, f"tensor<4x{element}>")
        yield f"ragged with slices of {element}", runs(call, [EXCHANGED, ZEROS])
    empty = RAGGED.with_values((4, 0), (6, 0), (3, (-7, 99, 7, 8)), (5, (100, -5, 3, 2)))
    yield "ragged of empty slices anywhere", runs(empty, [STAYED, ZEROS])
    none = with_vectors(RAGGED, "tensor<0xi32>").with_values((3, 0), (5, 0))
    yield "ragged without slices", runs(none, [STAYED, ZEROS])
    alone = RAGGED.with_attribute("group_size", "1 : i64").with_values((4, 0), (6, 0))
    yield "ragged of each rank alone", runs(alone, [STAYED, ZEROS])
    nothing = [None] * RANKS
    yield "ragged of no elements", runs(exchanging("tensor<8x0xf32>"), [nothing, ZEROS])
    many = with_vectors(exchanging(f"tensor<{LARGEST}x0xi8>"), "tensor<4xi64>")
    many = many.with_values((1, 0), (2, 0), (3, 0), (4, LARGEST), (5, 0), (6, LARGEST))
    yield "ragged of many rows of no elements", runs(many, [nothing, ZEROS])


def attributes() -> Named:
    """Every attribute: missing, of each other kind, and out of its range."""
    texts = {
        "an i32": "1 : i32",
        "a ui64": "1 : ui64",
        "a float": "1.0 : f64",
        "a truth value": "true",
        "a text": '"x"',
        "an i64": "1 : i64",
        "i64s": "array<i64: 0, 1, 2, 3>",
        "i32s": "array<i32: 0, 1, 2, 3>",
        "floats": "array<f64: 0.0, 1.0>",
        "a dictionary": "{a = 1 : i64}",
    }
    right = {"devices": "i64s", "replica_groups": "i64s", "site": "a text"}
    for call in (BARRIER, RAGGED):
        for name in ATTRIBUTES:
            gone = call.with_attribute(name, None)
            yield f"{call.name} without {name}", fails(gone, f"{call.name}: .*{name}")
            for kind, text in texts.items():
                if kind != right.get(name, "an i64"):
                    bad = call.with_attribute(name, text)
                    yield (
                        f"{call.name} with {kind} for {name}",
                        fails(bad, f"{call.name}: .*{name}"),
                    )
        yield f"{call.name} without attributes", fails(replace(call, attributes={}), call.name)
        for size in (0, -1, 3, 5, LARGEST, LEAST):
            bad = call.with_attribute("group_size", f"{size} : i64")
            error = f"replica_groups has 4 numbers, not a multiple of group_size {size}"
            yield f"{call.name} with group_size {size}", fails(bad, f"{call.name}: {error}")
        for limit in (0, -5, LEAST):
            bad = call.with_attribute("timeout_ms", f"{limit} : i64")
            error = f"{call.name}: timeout_ms is {limit}, not positive"
            yield f"{call.name} with timeout_ms {limit}", fails(bad, error)
        bad = call.with_attribute("site", f'"{"A" * 2**20}"').with_attribute(
            "timeout_ms", "0 : i64"
        )
        yield f"{call.name} with a long site", fails(bad, call.name)


def groups() -> Named:
    """Lists of devices and partitions that are no replica groups of these devices."""
    none, twice = "has no partition in devices", "is in replica_groups twice"
    lists = {
        ("devices", ""): "partition 0 of a replica group is none of 0 partitions",
        ("devices", "-1, -2, -3, -4"): none,
        ("devices", "4, 5, 6, 7"): none,
        ("devices", f"{LEAST}, {LARGEST}, 1, 2"): none,
        ("devices", "0, 1, 2"): "partition 3 of a replica group is none of 3 partitions",
        ("devices", "0, 0, 0, 0"): "device 0 is in devices twice",
        ("devices", "0, 1, 2, 2"): "device 2 is in devices twice",
        ("devices", "3, 1, 2, 3"): "device 3 is in devices twice",
        ("replica_groups", ""): r"partition \d is in no replica group",
        ("replica_groups", "-1, -1, -1, -1"): r"partition \d is in no replica group",
        ("replica_groups", "0, 1, 2, -1"): "partition 3 is in no|the 3 ranks of the",
        ("replica_groups", "0, 0, 0, 0"): f"partition 0 {twice}",
        ("replica_groups", "0, 1, 2, 2"): f"partition 2 {twice}",
        ("replica_groups", "0, 1, 2, 3, 0, 1, 2, 3"): f"partition 0 {twice}",
        ("replica_groups", "0, 1, 2, -2"): "replica_groups has -2",
        ("replica_groups", f"0, 1, 2, {LEAST}"): f"replica_groups has {LEAST}",
        ("replica_groups", f"0, 1, 2, {LARGEST}"): f"partition {LARGEST} of a replica group",
        ("replica_groups", "0, 1, 2, 4"): "partition 4 of a replica group is none of 4",
        ("replica_groups", "0, 1, 2, 3, 4, -1, -1, -1"): "partition 4 of a replica group",
    }
    for call in (BARRIER, RAGGED):
        # Some ranks then wait for devices that there are not.
        call = call.with_attribute("timeout_ms", "1000 : i64")
        for (name, numbers), error in lists.items():
            bad = call.with_attribute(name, f"array<i64: {numbers}>" if numbers else "array<i64>")
            yield f"{call.name} with {name} [{numbers}]", fails(bad, f"{call.name}.*({error})")
        bad = call.with_attribute("replica_groups", "array<i64: 0, 1, 1, 2>")
        bad = bad.with_attribute("group_size", "2 : i64")
        yield f"{call.name} with groups that overlap", fails(bad, f"partition 1 {twice}")


def counts() -> Named:
    """Operands and results that are missing, or too many."""
    for call in (BARRIER, RAGGED, TIE, AFTER):
        for index in range(len(call.operands)):
            if (call, index) != (AFTER, 1):
                bad = call.without_operand(index)
                yield f"{call.name} without operand {index}", fails(bad, call.name)
        for index in range(len(call.results)):
            if (call, index) != (BARRIER, 1):
                bad = call.without_result(index)
                yield f"{call.name} without result {index}", fails(bad, call.name)
        bad = replace(call.bare(), operands=(), values=())
        yield f"{call.name} without operands", fails(bad, call.name)
        yield f"{call.name} with one more result", fails(call.plus_result(ROWS), call.name)
    for call in (RAGGED, TIE):
        yield f"{call.name} with one more operand", fails(call.plus_operand(ROWS), call.name)
    for what, bad in {
        "an operand": NEW_TOKEN.plus_operand(TOKEN),
        "two results": NEW_TOKEN.plus_result(TOKEN),
        "no result": NEW_TOKEN.without_result(0),
    }.items():
        yield f"token with {what}", fails(bad, "hloom.token")
    for version in (0, 2):
        bad = replace(BARRIER, target=f"hloom.barrier.v{version}")
        yield f"version {version} of the barrier", fails(bad, "hloom.barrier")


def types() -> Named:
    """Every operand and result with other elements, another rank, and other sizes."""
    others = {
        TOKEN: "i32 ui64 f32 i1 ui8 4xui32 1xui32 0xui32",
        ROWS: "f32 8xf32 8x4xi32 8x4xf64 8x4xbf16 8x4xi1 8x4xi4 8x4xcomplex<f32> 4x8xf32 32xf32 "
        "8x8xf32 8x4096xf32 8x4x1xf32 8x0xf32",
        SLICES: "i32 4xf32 4xi4 4xi1 4xbf16 4xcomplex<f32> 2x2xi32 4x1xi32 3xi32 8xi32 0xi32 "
        "1xi32 4000xi32",
    }
    for call in (BARRIER, RAGGED, TIE, AFTER, NEW_TOKEN):
        for index, type_ in enumerate(call.operands):
            if (call, index) == (AFTER, 1):
                continue  # It waits for anything.
            for other in others[type_].split():
                bad = call.bare().with_operands((index, f"tensor<{other}>"))
                yield f"{call.name} with {other} as operand {index}", fails(bad, call.name)
        for index, type_ in enumerate(call.results):
            for other in others[type_].split():
                bad = call.bare().with_results((index, f"tensor<{other}>"))
                yield f"{call.name} with {other} as result {index}", fails(bad, call.name)
    for rows in (0, 2, 9, 800):
        # As many rows as it is, but not in the result that takes over the output, or the other way.
        type_ = f"tensor<{rows}x4xf32>"
        yield f"ragged into {rows} rows", fails(RAGGED.bare().with_operands((2, type_)), "result 0")
        yield (
            f"ragged giving {rows} rows",
            fails(RAGGED.bare().with_results((0, type_)), "result 0"),
        )


def slices() -> Named:
    """Offsets and sizes outside of the operand or the output, and such as do not agree."""
    signed, unsigned = with_vectors(RAGGED, "tensor<4xi64>"), with_vectors(RAGGED, "tensor<4xui64>")
    for number in (-1, 9, 2**31 - 1, 2**32, LARGEST, LEAST, LEAST + 1):
        bad = signed.with_values((4, number), (6, number))
        yield f"ragged with sizes {number}", fails(bad, "size")
        yield (
            f"ragged with input offsets {number}",
            fails(signed.with_values((3, number)), "offset"),
        )
        yield (
            f"ragged with output offsets {number}",
            fails(signed.with_values((5, number)), "offset"),
        )
        yield f"ragged that sends {number}", fails(signed.with_values((4, number)), "recv size 1")
        bad = signed.with_values((6, number))
        yield f"ragged that receives {number}", fails(bad, f"recv size {number}")
    for number in (2**63, 2**64 - 1):
        bad = unsigned.with_values((4, number), (6, number))
        yield f"ragged with unsigned sizes {number}", fails(bad, "size")
        bad = unsigned.with_values((3, number))
        yield f"ragged with unsigned offsets {number}", fails(bad, "offset")
    bad = signed.with_values((3, LARGEST), (4, LARGEST), (6, LARGEST))
    yield "ragged with offset plus size over all", fails(bad, "offset")
    yield "ragged of no rows", fails(RAGGED.with_operands((1, "tensor<0x4xf32>")), "of 0 rows")
    yield "ragged of and into no rows", fails(exchanging("tensor<0x4xf32>"), "of 0 rows")


def aliases() -> Named:
    """Results that take over the buffer of another operand than theirs."""
    two = BARRIER.plus_operand(ROWS).plus_result(ROWS)
    both = r"result \d has the buffer of operand \d"
    yield "barrier with crossed buffers", fails(replace(two, aliases=((1, 2), (2, 1))), both)
    yield "barrier into its other operand", fails(replace(two, aliases=((1, 2),)), both)
    pair = TIE.plus_operand(ROWS).plus_result(ROWS)
    yield "tie with crossed buffers", fails(replace(pair, aliases=((0, 2), (1, 1))), both)
    yield "ragged into its operand", fails(replace(RAGGED, aliases=((0, 1),)), both)
    for index in VECTORS:
        bad = replace(exchanging(SLICES), aliases=((0, index),))
        yield f"ragged into its operand {index}", fails(bad, both)


def mixtures() -> Named:
    """Two calls on one channel, one on ranks 0 and 1 and the other on the others."""
    narrow, wide = exchanging("tensor<8x4xf32>"), exchanging("tensor<8x65536xf32>")
    one, rows = "each channel is for one kind of call", "all ranks must have rows of one type"
    more = with_vectors(narrow, "tensor<8xi32>").with_values((3, 0), (4, 0), (6, 0))
    hasty = BARRIER.with_attribute("timeout_ms", "1000 : i64")
    halves = hasty.with_attribute("group_size", "2 : i64")
    mixed = {
        "barrier beside ragged": (BARRIER, narrow, one),
        "ragged beside barrier": (narrow, BARRIER, one),
        "narrow rows beside wide ones": (narrow, wide, rows),
        "wide rows beside narrow ones": (wide, narrow, rows),
        "f32 beside i32": (narrow, exchanging("tensor<8x4xi32>"), rows),
        "f32 beside twice as many bf16": (narrow, exchanging("tensor<8x8xbf16>"), rows),
        "i4 beside i8": (exchanging("tensor<8x4xi4>"), exchanging("tensor<8x2xi8>"), rows),
        "four slices beside eight": (narrow, more, "all ranks must have the same number"),
        # The others meet one another, and pass.
        "four ranks beside two": (hasty, halves, "ranks 2, 3 did not come within"),
        "four ranks in other orders": (
            hasty,
            hasty.with_attribute("replica_groups", "array<i64: 0, 1, 3, 2>"),
            "but those who wait at",
        ),
    }
    for name, (first, second, error) in mixed.items():
        yield name, Case(module_of_two(first, second), error=error)
    for call in (BARRIER, RAGGED):
        for name in ATTRIBUTES:
            module = module_of_two(call, call.with_attribute(name, None))
            yield (
                f"{call.name} beside one without {name}",
                Case(module, error=f"{call.name}.*{name}"),
            )
        module = module_of_two(call, call.without_operand(0))
        yield f"{call.name} beside one without a token", Case(module, error=call.name)
    module = module_of_two(narrow, exchanging("tensor<4x4xf32>"))
    yield "eight rows beside four", Case(module, results=[ZEROS])


KINDS: Mapping[str, Callable[[], Named]] = {
    make.__name__: make
    for make in (
        valid_calls, valid_exchanges, attributes, groups, counts, types, slices, aliases, mixtures
    )
}  # fmt: skip
