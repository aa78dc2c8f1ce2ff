"""`hloom.estimate`: what it takes, what it gives, and that nothing is compiled for it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from support import RunPython
from support.devices.meshes import each_kind_of_axes, mesh_of

import hloom
from hloom import targets
from hloom.passes.framework.target import Target
from hloom_tools.document.terminal import as_text
from hloom_tools.estimates.frontier import Frontier

LAYERS, ROWS, WIDTH = 12, 512, 64
TARGET = "h100_sxm"


def loss(w: Any, x: Any) -> Any:
    def layer(x: Any, w: Any) -> tuple[Any, None]:
        return x + jnp.tanh(jnp.tanh(x @ w) @ w), None

    return (jax.lax.scan(layer, x, w)[0] ** 2).mean()


def shapes(
    sharding: Any = None, weights: Any = None
) -> tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]:
    return (
        jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), "float32", sharding=weights),
        jax.ShapeDtypeStruct((ROWS, WIDTH), "float32", sharding=sharding),
    )


STEP = jax.jit(jax.grad(loss))


def words(found: Frontier) -> str:
    """What is printed, on one line."""
    return " ".join(str(found).split())


@pytest.fixture(scope="module")
def found() -> Frontier:
    # JAX keeps what `dynamic_index_in_dim` was traced to, with the line of whoever called it first,
    # another file perhaps; under another setting of passes it traces anew, with a line of this one.
    jax.clear_caches()
    return hloom.estimate(STEP, *shapes(), target=TARGET)


def test_points_along_the_frontier(found: Frontier) -> None:
    assert (found.module, found.target, found.note) == ("jit_loss", TARGET, "")
    assert found.points[0].spec == "off"
    assert found.points[-1].spec == "fit{budget=min}"
    assert all(point.spec.startswith("fit{budget=") for point in found.points[1:])
    assert found.unmodified_bytes == found.points[0].step_bytes
    assert found.floor_bytes == found.points[-1].step_bytes < found.unmodified_bytes
    assert found.device_bytes == targets.load(TARGET).usable_bytes
    assert set(found.knees) <= set(found.points)
    for point in found.points[1:]:
        assert point.added_share == point.added_seconds / found.step_seconds


def test_arrays_give_what_their_shapes_give(found: Frontier) -> None:
    arrays = [np.ones(each.shape, each.dtype) for each in shapes()]
    assert hloom.estimate(STEP, *arrays, target=TARGET) == found


def test_a_lowered_gives_the_same(found: Frontier) -> None:
    assert hloom.estimate(STEP.lower(*shapes()), target=TARGET) == found


def test_neither_the_flag_nor_the_own_option_matters(found: Frontier) -> None:
    step = jax.jit(jax.grad(loss), compiler_options={"hloom": "remat{budget=1B}"})
    with hloom.passes("remat"):
        assert hloom.estimate(step, *shapes(), target=TARGET) == found


def test_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("compiled")

    monkeypatch.setattr("jax._src.compiler.backend_compile_and_load", refuse)
    with pytest.raises(AssertionError, match="compiled"):
        jax.jit(lambda x: x - 3).lower(shapes()[1]).compile()
    step = jax.jit(jax.grad(lambda w, x: loss(w, x) * 2))
    assert hloom.estimate(step, *shapes(), target=TARGET).points


def test_budgets_as_in_a_spec() -> None:
    budgets = ["50%", "min", "fit", "1KiB", "1GiB"]
    found = hloom.estimate(STEP, *shapes(), budgets=budgets, target=TARGET)
    by_spec = {point.spec: point for point in found.points}
    others = (f"fit{{budget={budget}}}" for budget in budgets if budget != "fit")
    assert set(by_spec) == {"off", "fit", *others}
    off, half = by_spec["off"], by_spec["fit{budget=50%}"]
    assert half.holds
    assert half.temp_bytes <= off.temp_bytes / 2
    assert by_spec["fit{budget=min}"].step_bytes == found.floor_bytes
    assert not by_spec["fit{budget=1KiB}"].holds
    # Loops that stack less are faster, so that also what fits as it is has a plan.
    assert by_spec["fit{budget=1GiB}"].added_seconds == by_spec["fit"].added_seconds < 0
    assert "✗ fit{budget=1KiB}: the least that a step can be held to is " in words(found)


def test_a_single_budget_and_a_number_of_points() -> None:
    one = hloom.estimate(STEP, *shapes(), budgets="50%", target=TARGET)  # type: ignore[arg-type]
    assert [point.spec for point in one.points] == ["off", "fit{budget=50%}"]
    few = hloom.estimate(STEP, *shapes(), budgets=3, target=TARGET)
    assert 2 <= len(few.points) <= 4


@pytest.mark.parametrize(
    ("budgets", "said"),
    [
        (["60G"], "got '60G'. Did you mean '60GiB' or '60GB'?"),
        (["0.5"], "got '0.5'. Did you mean '50%'?"),
        (["mni"], "got 'mni'. Did you mean 'min'?"),
        (["150%"], "got '150%'. A share is from 0% to 100%."),
        (["60GiB compiles=5"], "got '60GiB compiles=5'."),
        ([60], "got 60."),
        (1, "budgets=1: of points there are at least 2."),
        (True, "got True."),
    ],
)
def test_a_mistaken_budget_is_told(budgets: Any, said: str) -> None:
    with pytest.raises(hloom.SpecError) as raised:
        hloom.estimate(STEP, *shapes(), budgets=budgets)
    assert str(raised.value).startswith("hloom.estimate: ")
    assert said in str(raised.value)


def test_what_cannot_be_lowered_is_told() -> None:
    with pytest.raises(TypeError, match=r"got function\. Use jax\.jit\(f\)\."):
        hloom.estimate(loss, *shapes())
    with pytest.raises(TypeError, match="a Lowered has its arguments"):
        hloom.estimate(STEP.lower(*shapes()), *shapes())
    with pytest.raises(targets.TargetError, match="unknown target 'h100'"):
        hloom.estimate(STEP, *shapes(), target="h100")


def test_a_described_target_may_be_given_itself(found: Frontier) -> None:
    assert hloom.estimate(STEP, *shapes(), target=targets.load(TARGET)) == found
    unknown = Target("cuda", "some GPU", speed=targets.load(TARGET).speed)
    other = hloom.estimate(STEP, *shapes(), budgets=["fit", "50%"], target=unknown)
    assert other.device_bytes is None
    assert other.note == "fit: the memory of some GPU is not known."
    assert [point.spec for point in other.points] == ["off", "fit{budget=50%}"]


def test_the_default_target_is_what_it_is_lowered_for() -> None:
    here = hloom.estimate(STEP, *shapes(), budgets=2)
    assert here.target == "cpu"
    assert here.device_bytes


def dropped(w: Any, x: Any, key: Any) -> Any:
    def layer(x: Any, one: tuple[Any, Any]) -> tuple[Any, None]:
        w, key = one
        y = jnp.tanh(x @ w)
        return x + jnp.where(jax.random.bernoulli(key, 0.9, y.shape), y, 0.0), None

    return (jax.lax.scan(layer, x, (w, jax.random.split(key, LAYERS)))[0] ** 2).mean()


DROPPED = jax.jit(jax.grad(dropped)), (*shapes(), jax.ShapeDtypeStruct((2,), "uint32"))


@pytest.mark.parametrize(("target", "platform"), [(TARGET, "cuda"), ("v5p", "tpu")])
def test_it_is_lowered_for_its_target(target: str, platform: str) -> None:
    step, arguments = DROPPED
    there = step.trace(*arguments).lower(lowering_platforms=(platform,))
    found = hloom.estimate(step, *arguments, target=target)
    assert found == hloom.estimate(there, target=target)
    assert found.note == ""


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_what_xla_computes_in_float32_is_told(dtype: str) -> None:
    """The model is up to 60 % low of such programs on a CPU, and within 11 % of float32."""
    step = jax.jit(jax.grad(lambda w, x: jnp.tanh(x @ w).astype(jnp.float32).sum()))
    arguments = [jax.ShapeDtypeStruct((64, 64), dtype)] * 2
    told = (
        f"XLA:CPU computes {dtype} in float32 and keeps most of it so: temporaries are up to twice"
    )
    assert hloom.estimate(step, *arguments).note.startswith(told) == (dtype != "float32")
    assert "XLA:CPU computes" not in hloom.estimate(step, *arguments, target=TARGET).note


def test_what_was_lowered_for_a_cpu_is_told() -> None:
    step, arguments = DROPPED
    lowered = step.lower(*arguments)
    found = hloom.estimate(lowered, target=TARGET, budgets=["min"])
    assert found.note == (
        "It was lowered for a CPU, where random numbers are made in loops: what makes them again "
        "costs less on h100_sxm than it says here."
    )
    there = hloom.estimate(step, *arguments, target=TARGET, budgets=["min"])
    assert found.points[-1].added_share > there.points[-1].added_share
    assert hloom.estimate(lowered, budgets=["min"]).note != found.note


def test_what_only_this_platform_has_is_estimated_as_it_is_here() -> None:
    # JAX lowers eigenvalues of a general matrix for a CPU, and not for a TPU.
    step = jax.jit(lambda x: jnp.abs(jnp.linalg.eigvals(x)).sum())
    found = hloom.estimate(step, jax.ShapeDtypeStruct((8, 8), "float32"), target="v5p")
    assert found.note.startswith("JAX cannot lower it for tpu here (NotImplementedError: ")
    assert "): it is as lowered for cpu. " in found.note


@each_kind_of_axes
def test_sharded_arguments_count_by_their_share(axes: AxisType) -> None:
    mesh = mesh_of(axes, x=8)
    spread, whole = (NamedSharding(mesh, PartitionSpec(*split)) for split in (("x",), ()))
    one = hloom.estimate(STEP, *shapes(), budgets=["50%"], target=TARGET)
    eight = hloom.estimate(STEP, *shapes(spread, whole), budgets=["50%"], target=TARGET)
    assert eight.points[0].temp_bytes < one.points[0].temp_bytes / 2
    assert eight.points[1].holds
    assert eight.points[1].added_seconds > 0


def test_without_a_gradient_it_says_so() -> None:
    found = hloom.estimate(jax.jit(loss), *shapes(), target=TARGET)
    assert [point.spec for point in found.points] == ["off"]
    assert found.note.startswith("Nothing is recomputed: no recomputation that was tried lowers")
    assert found.note in words(found)


def test_where_barriers_are_dropped_it_says_so() -> None:
    def straight(w: Any, x: Any) -> Any:
        for each in range(LAYERS):
            x = jnp.tanh(jnp.tanh(x @ w[each]) @ w[each])
        return (x**2).mean()

    target = Target(keeps_barriers=False)
    found = hloom.estimate(jax.jit(jax.grad(straight)), *shapes(), target=target)
    assert all(point.moves for point in found.points[1:])
    assert "the CPU compiler of jaxlib 0.10 keeps no optimization barriers" in found.note
    scans = hloom.estimate(STEP, *shapes(), target=target)
    assert len(scans.points) > 2
    assert "so that only scans are rewritten" in scans.note


def test_the_largest_values_at_the_peak_are_told(found: Frontier) -> None:
    first = found.peak[0]
    assert 1 <= len(found.peak) <= 5
    sizes = [one.bytes * one.times for one in found.peak]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) <= found.points[0].temp_bytes
    # Not by the line of the scan, but by that of the layer.
    lines = Path(__file__).read_text().splitlines()
    layer = next(n for n, line in enumerate(lines, start=1) if "return x + jnp.tanh" in line)
    assert (first.stacked, first.source.line) == (LAYERS, f"{__file__}:{layer}")
    heads, *below = str(found).partition("when it takes most\n")[2].splitlines()
    assert heads.split() == ["takes", "of", "all", "value", "line"]
    assert f", stacked over {LAYERS} iterations)" in below[0]
    assert below[0].endswith(f"test_estimate.py:{layer}")


def test_why_a_device_has_so_much_for_a_step_is_told(found: Frontier) -> None:
    assert found.limit.startswith("59.3 GiB are 75 % of its 79.1 GiB, what JAX takes by default")
    assert found.limit in words(found)


def test_a_table_with_moves_is_for_80_columns() -> None:
    logits = jax.jit(jax.grad(lambda w, x: jax.nn.log_softmax(x @ w)[jnp.arange(4096), 0].mean()))
    shapes = [jax.ShapeDtypeStruct(each, "float32") for each in ((64, 65536), (4096, 64))]
    found = hloom.estimate(logits, *shapes, target=TARGET, budgets=["min"])
    assert found.points[-1].moves
    lines = as_text(found.document, 80).splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert any("fit{budget=min}" in line for line in lines)
    moves = "".join(line.partition("with ")[2].strip() for line in lines)
    assert found.points[-1].moves.split("{")[0].split(",")[0] in moves


def test_as_json_it_is_whole(found: Frontier) -> None:
    written = json.loads(json.dumps(found.to_json()))
    assert written["module"] == "jit_loss"
    assert written["points"][0] == dataclasses.asdict(found.points[0])
    assert len(written["points"]) == len(found.points)


def test_the_table_has_a_spec_to_copy_in_each_row(found: Frontier) -> None:
    lines = str(found).splitlines()
    assert lines[0] == f"jit_loss on {TARGET}: memory of a step against added time, predicted"
    assert [line.split()[-1] for line in lines[2 : 2 + len(found.points)]] == [
        point.spec for point in found.points
    ]
    assert repr(found) == str(found)


def test_importing_hloom_does_not_import_it(run_python: RunPython) -> None:
    script = """
import sys, hloom
loaded = any(name.startswith("hloom_tools.estimates") for name in sys.modules)
print("estimate" in dir(hloom), loaded)
print(hloom.estimate.__module__)
"""
    shown = run_python(script).stdout.splitlines()
    assert shown[-2:] == ["True False", "hloom_tools.estimates.ask"]
