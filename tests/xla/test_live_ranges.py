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

from hloom._jax.executables import optimized_text
from hloom.targets import deviceless
from hloom.xla.hlo import HloModule
from hloom.xla.live_ranges import live_ranges
from hloom.xla.origins import HloValue, Origins

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

    module: str
    assignment: str
    ranges: str
    memory: Any

    def live_ranges(self) -> Any:
        return live_ranges(self.assignment, self.ranges, self.module)


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
    return Compiled(
        optimized_text(executable.runtime_executable()),
        assignment.read_text(),
        live_range.read_text(),
        executable.memory_analysis(),
    )


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


@each(CPU + H100)
def test_the_peak_is_near_what_xla_sets_aside(one: Compiled) -> None:
    found = one.live_ranges()
    assert found["temp_bytes"] == one.memory.temp_size_in_bytes
    # What lies between are gaps.
    assert 0.9 * found["temp_bytes"] <= found["peak_bytes"] <= found["temp_bytes"]
    assert found["peak_bytes"] == max(size for _, size in found["curve"])
    assert [found["peak_at"], found["peak_bytes"]] in found["curve"]


@each(CPU + H100)
def test_the_values_at_the_peak_make_it_up(one: Compiled) -> None:
    found = one.live_ranges()
    there = [found["values"][number] for number in found["at_peak"]]
    assert sum(value["bytes"] for value in there) == found["peak_bytes"]
    assert {value["kind"] for value in there} == {"temp"}
    assert all(value["start"] <= found["peak_at"] <= value["end"] for value in there)


def test_values_say_where_they_come_from(folder: Path) -> None:
    one = compiled("straight", "cpu", folder)
    found = one.live_ranges()
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
    found = one.live_ranges()
    stacks = [
        found["values"][number]
        for number in found["at_peak"]
        if found["values"][number]["type"] == f"f32[{LAYERS},{ROWS},{WIDTH}]"
    ]
    assert stacks
    lines = Path(__file__).read_text().splitlines()
    layer = next(number for number, text in enumerate(lines, start=1) if "return x + jnp" in text)
    for stack in stacks:
        assert "while/body" in stack["operation"]
        # Not the line of the scan, which stores all of them.
        assert stack["line"] == f"{__file__}:{layer}"
        assert stack["stacked"] == LAYERS
    assert any(stack["operation"].endswith("/tanh") for stack in stacks)


def in_bfloat16(kernels: jax.Array, x: jax.Array) -> jax.Array:
    def layer(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, None]:
        return x + jnp.tanh(x @ kernel), None

    return jnp.mean(jax.lax.scan(layer, x, kernels)[0].astype("float32") ** 2)


def test_copies_that_xla_makes_in_float32_are_called_that(tmp_path: Path) -> None:
    spec = jax.ShapeDtypeStruct
    shapes = spec((LAYERS, WIDTH, WIDTH), "bfloat16"), spec((ROWS, WIDTH), "bfloat16")
    options = {"xla_dump_to": str(tmp_path), "xla_dump_hlo_as_text": True}
    executable = jax.jit(jax.grad(in_bfloat16)).lower(*shapes).compile(compiler_options=options)
    (assignment,) = tmp_path.glob("*optimizations-buffer-assignment.txt")
    (ranges,) = tmp_path.glob("*optimizations-live-range.txt")
    text = optimized_text(executable.runtime_executable())
    found: Any = live_ranges(assignment.read_text(), ranges.read_text(), text)
    copies = [value for value in found["values"] if "copy_of" in value]
    assert copies
    for copy in copies:
        assert copy["type"].startswith("f32[")
        assert copy["copy_of"] == "bf16"
    # What the user has converted is no copy of XLA's.
    converted = [v for v in found["values"] if v["operation"].endswith("/convert_element_type")]
    assert all("copy_of" not in value for value in converted)


@pytest.mark.once
def test_of_what_a_loop_hands_on_the_maker_is_found_and_no_circle_is_gone_round() -> None:
    text = """
%body (p: (f32[2,8], f32[2,8])) -> (f32[2,8], f32[2,8]) {
  %p = (f32[2,8], f32[2,8]) parameter(0)
  %a = f32[2,8] get-tuple-element(%p), index=0
  %b = f32[2,8] get-tuple-element(%p), index=1
  ROOT %swapped = (f32[2,8], f32[2,8]) tuple(%b, %a)
}
ENTRY %main (x: f32[2,8]) -> f32[2,8] {
  %x = f32[2,8] parameter(0), metadata={op_name="x[\\'w\\']"}
  %both = (f32[2,8], f32[2,8]) tuple(%x, %x)
  %loop = (f32[2,8], f32[2,8]) while(%both), condition=%c, body=%body, metadata={op_name="while" source_file="me.py" source_line=3}
  ROOT %out = f32[2,8] get-tuple-element(%loop), index=0
}
"""  # noqa: E501
    instructions = HloModule(text)
    assert instructions.get("x").operation == "x['w']"
    value = HloValue("loop", "{0}", "f32[2,8]", 0, "temp", 0, 64, 1, 2)
    found = Origins([value], instructions).of(value)
    assert (found.made_by.source.line, found.stacked, found.copy_of) == ("me.py:3", 1, "")


def test_of_very_many_values_the_largest_are_listed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = compiled("straight", "cpu", folder)
    every = one.live_ranges()
    monkeypatch.setattr("hloom.xla.live_ranges.MAX_VALUES", 10)
    found = one.live_ranges()
    assert len(found["values"]) == 10
    assert found["values_left_out"] == len(every["values"]) - 10
    largest = sorted((value["bytes"] for value in every["values"]), reverse=True)[:10]
    assert sorted((value["bytes"] for value in found["values"]), reverse=True) == largest
    assert (found["curve"], found["peak_bytes"]) == (every["curve"], every["peak_bytes"])


@each(CPU + H100)
def test_ranges_are_xlas_own(one: Compiled) -> None:
    found = one.live_ranges()
    rows = re.findall(r"^    (\S+?)(\{[\d,]*\}):(\d+)-(\d+)$", one.ranges, re.MULTILINE)
    wanted = {name + index: (int(start), int(end)) for name, index, start, end in rows}
    named = {value["name"] for value in found["values"]}
    assert len(named) == len(found["values"])
    for value in found["values"]:
        name = value["name"] if "{" in value["name"] else value["name"] + "{}"
        assert (value["start"], value["end"]) == wanted[name]
    assert found["instructions"] == len(re.findall(r"^    \d+:", one.ranges, re.MULTILINE))


def test_texts_that_do_not_belong_together_are_refused(folder: Path) -> None:
    one, other = (compiled(name, "cpu", folder) for name in ("straight", "scanned"))
    alien = (
        "allocation 0: size 4, maybe-live-out:\n value: <1 nobody @0> (size=4,offset=0): f32[]\n"
    )
    for assignment in (alien, "nothing", ""):
        with pytest.raises(ValueError, match="names no allocation"):
            live_ranges(assignment, one.ranges, one.module)
    # Without the module there are no operations, and all else is there.
    found: Any = live_ranges(other.assignment, other.ranges, "")
    assert found["peak_bytes"] == other.live_ranges()["peak_bytes"]
    assert {value["operation"] for value in found["values"]} == {""}


def test_a_text_that_is_cut_off_gives_what_is_there(folder: Path) -> None:
    one = compiled("straight", "cpu", folder)
    found: Any = live_ranges(one.assignment[: len(one.assignment) // 8], one.ranges, one.module)
    assert 0 < len(found["values"]) < len(one.live_ranges()["values"])
