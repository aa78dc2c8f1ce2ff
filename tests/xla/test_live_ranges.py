"""Live ranges of what XLA compiled, beside those that XLA itself writes."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import serialize_executable

from hloom.targets import deviceless
from hloom.xla.alias_analysis import SharedMemory
from hloom.xla.buffer_assignment import read_proto, read_text
from hloom.xla.dataflow import Dataflow
from hloom.xla.hlo_module import Module
from hloom.xla.live_ranges import live_ranges
from hloom.xla.protobuf import Message, WireError

LAYERS, ROWS, WIDTH = 4, 256, 128


def straight(kernels: list[jax.Array], x: jax.Array) -> tuple[list[jax.Array], jax.Array]:
    def loss(kernels: list[jax.Array]) -> jax.Array:
        y = x
        for kernel in kernels:
            y = jnp.tanh(y @ kernel)
        return jax.nn.logsumexp(y, -1).mean()

    value, gradients = jax.value_and_grad(loss)(kernels)
    return [one - 0.1 * other for one, other in zip(kernels, gradients, strict=True)], value


def scanned(kernels: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    def layer(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, None]:
        return x + jnp.tanh(x @ kernel) @ kernel.T, None

    def loss(kernels: jax.Array) -> jax.Array:
        return jnp.mean(jax.lax.scan(layer, x, kernels)[0] ** 2)

    value, gradient = jax.value_and_grad(loss)(kernels)
    return kernels - 0.1 * gradient, value


def branching(turns: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    def turn(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        number, y = state
        even = lambda y: jnp.tanh(y @ x) @ x  # noqa: E731
        odd = lambda y: jnp.sin(y) @ y * 2  # noqa: E731
        return number + 1, jax.lax.cond(number % 2 == 0, even, odd, y)

    _, y = jax.lax.while_loop(lambda state: state[0] < turns, turn, (0, x * 2))
    return jnp.linalg.norm(y), y @ x


@dataclass(frozen=True)
class Compiled:
    """A compiled program and what XLA wrote about it."""

    executable: Any
    module: bytes
    assignment: bytes
    assignment_text: str
    live_range_text: str
    memory: Any


CPU = [(program, "cpu") for program in ("straight", "scanned", "branching")]
H100 = [pytest.param(("scanned", "h100_sxm"), marks=pytest.mark.h100)]


@functools.cache
def compiled(program: str, platform: str, folder: Path) -> Compiled:
    sharding = None if platform == "cpu" else deviceless.placement(platform)
    spec = functools.partial(jax.ShapeDtypeStruct, sharding=sharding)
    square = spec((WIDTH, WIDTH), "float32")
    function, arguments, donated = {
        "straight": (straight, ([square] * LAYERS, spec((ROWS, WIDTH), "float32")), (0,)),
        "scanned": (
            scanned,
            (spec((LAYERS, WIDTH, WIDTH), "float32"), spec((ROWS, WIDTH), "float32")),
            (0,),
        ),
        "branching": (branching, (spec((), "int32"), square), ()),
    }[program]
    to = folder / f"{program}-{platform}"
    options = {"xla_dump_to": str(to), "xla_dump_hlo_as_text": True}
    lowered = jax.jit(function, donate_argnums=donated).lower(*arguments)
    executable = lowered.compile(compiler_options=options)
    (assignment,) = to.glob("*optimizations-buffer-assignment.txt")
    (live_range,) = to.glob("*optimizations-live-range.txt")
    module, proto = protos(executable.runtime_executable())
    return Compiled(
        executable,
        module,
        proto,
        assignment.read_text(),
        live_range.read_text(),
        executable.memory_analysis(),
    )


def protos(executable: Any) -> tuple[bytes, bytes]:
    (module,) = executable.hlo_modules()
    stats = executable.get_compiled_memory_stats()
    return module.as_serialized_hlo_module_proto(), stats.serialized_buffer_assignment_proto


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("xla")


@pytest.fixture
def one(request: pytest.FixtureRequest, folder: Path) -> Compiled:
    return compiled(*request.param, folder)


def each(programs: list[Any]) -> Any:
    """The programs, compiled."""
    return pytest.mark.parametrize("one", programs, indirect=True, ids=_program_id)


def _program_id(value: tuple[str, str]) -> str:
    return "-".join(value)


def xla_ranges(text: str) -> dict[tuple[str, tuple[int, ...]], tuple[int, int]]:
    rows = re.findall(r"^    (\S+?)\{([\d,]*)\}:(\d+)-(\d+)$", text, re.MULTILINE)
    return {
        (name, tuple(int(part) for part in index.split(",") if part)): (int(start), int(end))
        for name, index, start, end in rows
    }


@pytest.mark.parametrize("by_rules", [False, True], ids=["by-assignment", "by-rules"])
@each(CPU + H100)
def test_order_and_ranges_are_xlas_own(one: Compiled, by_rules: bool) -> None:
    known = read_text(one.assignment_text)
    flow = Dataflow(Module(one.module), None if by_rules else known.has)
    SharedMemory(flow).hand_over()
    sequence = re.findall(r"^    \d+:(\S+)$", one.live_range_text, re.MULTILINE)
    assert [instruction.name for instruction in flow.order] == sequence
    assert {
        (flow.instruction(value).name, value[1]): (range_.start, range_.end)
        for value, range_ in flow.ranges.items()
    } == xla_ranges(one.live_range_text)


@each(CPU)
def test_bytes_and_text_of_an_assignment_say_the_same(one: Compiled) -> None:
    from_bytes, from_text = read_proto(one.assignment), read_text(one.assignment_text)
    assert (from_bytes.sizes, from_bytes.kinds) == (from_text.sizes, from_text.kinds)
    found = live_ranges(one.module, one.assignment)
    again = live_ranges(one.module, buffer_assignment_text=one.assignment_text)
    assert (found.pop("source"), again.pop("source")) == (
        "buffer assignment",
        "buffer assignment text",
    )
    assert found == again


@each(CPU + H100)
def test_the_peak_is_near_what_xla_sets_aside(one: Compiled) -> None:
    found: Any = live_ranges(one.module, one.assignment, buffer_assignment_text=one.assignment_text)
    assert found["temp_bytes"] == one.memory.temp_size_in_bytes
    # What lies between are gaps.
    assert 0.9 * found["temp_bytes"] <= found["peak_bytes"] <= found["temp_bytes"]
    assert found["peak_bytes"] == max(size for _, size in found["curve"])
    assert [found["peak_at"], found["peak_bytes"]] in found["curve"]


@each(CPU + H100)
def test_the_values_at_the_peak_make_it_up(one: Compiled) -> None:
    found: Any = live_ranges(one.module, one.assignment, buffer_assignment_text=one.assignment_text)
    there = [found["values"][number] for number in found["at_peak"]]
    assert sum(value["bytes"] for value in there) == found["peak_bytes"]
    assert {value["kind"] for value in there} == {"temp"}
    assert all(value["start"] <= found["peak_at"] <= value["end"] for value in there)


def test_values_say_where_they_come_from(folder: Path) -> None:
    one = compiled("straight", "cpu", folder)
    found: Any = live_ranges(one.module, one.assignment)
    line = next(
        number
        for number, text in enumerate(Path(__file__).read_text().splitlines(), start=1)
        if "jnp.tanh(y @ kernel)" in text
    )
    kept = [value for value in found["values"] if value["line"] == f"{__file__}:{line}"]
    forward = [value for value in kept if value["operation"] == "jit(straight)/jvp()/tanh"]
    assert len(forward) == LAYERS
    assert {value["type"] for value in forward} == {f"f32[{ROWS},{WIDTH}]"}
    assert {value["bytes"] for value in forward} == {4 * ROWS * WIDTH}
    arguments = [value for value in found["values"] if value["kind"] == "argument"]
    assert [value["operation"] for value in arguments] == ["x"]
    # A donated argument lies in memory that is an output's.
    outputs = [value["operation"] for value in found["values"] if value["kind"] == "output"]
    assert "kernels[0]" in outputs
    assert json.loads(json.dumps(found)) == found


def test_a_stack_is_named_by_what_is_stored_into_it(folder: Path) -> None:
    one = compiled("scanned", "cpu", folder)
    found: Any = live_ranges(one.module, one.assignment)
    stacks = [
        found["values"][number]
        for number in found["at_peak"]
        if found["values"][number]["type"] == f"f32[{LAYERS},{ROWS},{WIDTH}]"
    ]
    assert stacks
    for stack in stacks:
        assert "while/body" in stack["operation"]
        assert "dynamic_update" in stack["operation"]
        assert stack["line"].startswith(__file__)


@pytest.mark.h100
def test_the_schedule_alone_comes_near(folder: Path) -> None:
    """XLA tells no assignment of an executable for a GPU that is not there."""
    one = compiled("scanned", "h100_sxm", folder)
    assert not one.assignment
    found: Any = live_ranges(one.module)
    assert (found["source"], found["temp_bytes"]) == ("schedule alone", None)
    temp_bytes = one.memory.temp_size_in_bytes
    assert 0.85 * temp_bytes <= found["peak_bytes"] <= 1.15 * temp_bytes
    kinds = {value["kind"] for value in found["values"]}
    assert kinds >= {"argument", "output", "temp"}


def test_an_executable_that_was_loaded_says_the_same(folder: Path) -> None:
    one = compiled("scanned", "cpu", folder)
    loaded = serialize_executable.deserialize_and_load(
        *serialize_executable.serialize(one.executable)
    )
    module, assignment = protos(loaded.runtime_executable())
    assert live_ranges(module, assignment) == live_ranges(one.module, one.assignment)


def test_of_very_many_values_the_largest_are_listed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = compiled("straight", "cpu", folder)
    every: Any = live_ranges(one.module, one.assignment)
    monkeypatch.setattr("hloom.xla.live_ranges.MAX_VALUES", 10)
    found: Any = live_ranges(one.module, one.assignment)
    assert len(found["values"]) == 10
    assert found["values_left_out"] == len(every["values"]) - 10
    largest = sorted((value["bytes"] for value in every["values"]), reverse=True)[:10]
    assert sorted((value["bytes"] for value in found["values"]), reverse=True) == largest
    assert (found["curve"], found["peak_bytes"]) == (every["curve"], every["peak_bytes"])


def test_an_assignment_of_another_module_is_refused(folder: Path) -> None:
    one = compiled("straight", "cpu", folder)
    with pytest.raises(ValueError, match="of another module"):
        live_ranges(
            one.module,
            buffer_assignment_text="allocation 0: size 4, maybe-live-out:\n"
            " value: <1 nobody @0> (size=4,offset=0): f32[]\n",
        )
    with pytest.raises(ValueError, match="names no allocation"):
        live_ranges(one.module, buffer_assignment_text="nothing")


@pytest.mark.once
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no entry computation"),
        (b"\x0a\x05ab", "a field of 5 bytes ends behind the last byte, 4"),
        (b"\x0a", "a number is cut off at the last byte, 1"),
        (b"\x0b", "a field of unknown kind 3 at byte 1"),
    ],
)
def test_bytes_that_are_no_module_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        live_ranges(data)


def test_a_module_that_is_cut_off_is_refused(folder: Path) -> None:
    one = compiled("straight", "cpu", folder)
    with pytest.raises(ValueError):
        live_ranges(one.module[: len(one.module) // 2], one.assignment)
    with pytest.raises(ValueError):
        live_ranges(one.module, one.assignment[:-1])


@pytest.mark.once
def test_a_module_whose_instructions_are_missing_is_refused() -> None:
    # Entry computation 1 named "a" with root 5, and a schedule of it that runs instruction 7.
    computation = b"\x0a\x01a\x28\x01\x30\x05"
    schedule = b"\x0a\x07\x08\x01\x12\x03\x0a\x01\x07"
    data = b"\x1a\x07" + computation + b"\x30\x01" + b"\x3a\x09" + schedule
    with pytest.raises(ValueError, match=r"not as XLA writes them: KeyError\(7\)"):
        live_ranges(data)


@pytest.mark.once
def test_fields_of_a_message() -> None:
    # 1: 300; 2: "hé"; 3: [1, -1] packed; 3: 2 by itself; 4: a message with 1: 5; 5: four bytes.
    minus_one = b"\xff" * 9 + b"\x01"
    message = Message(
        b"\x08\xac\x02" + b"\x12\x03h\xc3\xa9" + b"\x1a\x0b\x01" + minus_one + b"\x18\x02"
        b"\x22\x02\x08\x05" + b"\x2d\x00\x00\x80\x3f"
    )
    assert message.integer(1) == 300
    assert message.text(2) == "hé"
    assert message.integers(3) == [1, -1, 2]
    assert message.message(4).integer(1) == 5
    assert message.has(5)
    assert (message.integer(9), message.text(9), message.messages(9)) == (0, "", [])
    with pytest.raises(WireError, match="field 1 is a number"):
        message.text(1)
