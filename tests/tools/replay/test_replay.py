"""Running a dumped module again: what it gives, under these passes or others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from support.dumps.replay_programs import X, program_of, text_of
from support.results import assert_equal
from support.toy_passes import Fail, ReplaceTwo

from hloom.passes.framework import registry
from hloom.passes.framework.errors import PassError, SpecError
from hloom.passes.framework.pipeline import Pipeline
from hloom_tools.replay import ReplayError
from hloom_tools.replay import arguments as inputs
from hloom_tools.replay.comparison import compare
from hloom_tools.replay.interpreter import interpret


def placed(mesh: jax.sharding.Mesh, value: Any, *spec: str | None) -> jax.Array:
    return jax.device_put(jnp.asarray(value), NamedSharding(mesh, PartitionSpec(*spec)))


def test_a_program_of_eight_devices_gives_what_it_gave() -> None:
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)

    def step(state: Any, x: jax.Array, key: jax.Array) -> Any:
        w = state["w"] - 0.1 * (x.T @ jnp.tanh(x @ state["w"]))
        narrow = (x.astype(jnp.bfloat16), x.astype(jnp.float8_e4m3fn), x.astype(jnp.int4))
        return {"w": w}, narrow, (x > 0, x + 1j), jax.random.split(key)[0], jnp.zeros((0, 3))

    values = np.random.default_rng(0).normal(size=(24, 8)).astype(np.float32)
    state = {"w": placed(mesh, values[:8], None, "b")}
    x, key = placed(mesh, values[8:], "a", None), jax.random.key(3)
    given = [np.array(state["w"]), np.array(x), np.array(jax.random.key_data(key))]
    program = program_of(step, state, x, key, donate_argnums=0)
    assert len(program.devices) == 8
    assert [(v.name, v.donated) for v in program.arguments] == [
        ("state['w']", True),
        ("x", False),
        ("key", False),
    ]

    kept = [array.copy() for array in given]
    runnable = program.compile("off")
    results = runnable.run(given)
    # Twice: a donated argument is on the host still.
    again = runnable.run(given)
    assert len(runnable.times_s(given, 3)) == 3
    assert_equal(given, kept)

    leaves = jax.tree.leaves(jax.jit(step)(state, x, key))
    wanted = [
        np.asarray(jax.random.key_data(leaf) if leaf.dtype == key.dtype else leaf)
        for leaf in leaves
    ]
    names = [value.name for value in program.results]
    assert names[0] == "result[0]['w']"
    assert compare(results, wanted, names).bits_equal
    assert compare(again, wanted, names).bits_equal


def test_passes_change_memory_and_no_result() -> None:
    def loss(ws: jax.Array, x: jax.Array) -> jax.Array:
        def layer(c: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
            return jax.nn.gelu(jnp.sin(c @ w)) + c, None

        return (jax.lax.scan(layer, x, ws)[0] ** 2).mean()

    shapes = [jax.ShapeDtypeStruct(s, "float32") for s in ((6, 16, 16), (512, 16))]
    program = program_of(jax.grad(loss), *shapes)
    given = inputs.random(program)
    off, on = program.compile("off"), program.compile(Pipeline.parse("remat"))
    assert off.step_bytes is not None
    assert on.step_bytes is not None
    assert on.step_bytes < off.step_bytes
    assert off.memory.temp_bytes > on.memory.temp_bytes > 0
    assert [run.name for run in on.record.runs][-1] == "remat"
    assert compare(on.run(given), off.run(given), ["gradient"]).equal
    # A budget that cannot be met is no error here.
    assert "cannot be held to 1.00 KiB" in (
        program.compile("remat{budget=1KiB}").record.complaint or ""
    )


def test_a_wrong_pass_is_seen_and_a_failing_one_never_falls_back() -> None:
    program = program_of(lambda x: x * 2.0, X)
    given = inputs.random(program)
    with registry.registered(ReplaceTwo):
        wrong = program.compile("replace-two").run(given)
    right = program.compile("off").run(given)
    [value] = compare(wrong, right, ["x"]).values
    assert not value.equal
    assert value.max_relative == pytest.approx(0.5 / (1 + right[0].mean() / right[0].max()), 0.1)
    for phase in ("plan", "apply", "verify", "compile"):
        with pytest.raises(PassError, match=f"failed in {phase}"):
            program.compile(Pipeline((Fail(phase=phase),)))
    with pytest.raises(SpecError, match="Did you mean 'remat'"):
        program.compile("remt")


def test_callbacks_that_give_nothing_are_left_out() -> None:
    def function(x: jax.Array) -> jax.Array:
        jax.debug.print("unordered {}", x)
        jax.debug.print("ordered {}", x, ordered=True)
        return x + 1

    program = program_of(function, X)
    assert program.notes[0] == "2 host callbacks without a result left out"
    # A token stands before the value, on both sides.
    assert [value.index for value in program.arguments + program.results] == [1, 1]
    given = inputs.random(program)
    np.testing.assert_array_equal(program.compile("off").run(given)[0], given[0] + 1)


def test_a_fresh_process_has_the_devices_and_libraries_that_a_module_needs(
    run_python: Callable[..., Any], tmp_path: Path
) -> None:
    mesh = jax.make_mesh((4,), ("a",), axis_types=(AxisType.Auto,))
    x = jax.ShapeDtypeStruct((4, 4), "float32", sharding=NamedSharding(mesh, PartitionSpec("a")))
    text = text_of(lambda x: (jnp.linalg.cholesky(x), x + 1), x)
    # 64-bit values in a process that has JAX make 32-bit ones.
    (tmp_path / "m.mlir").write_text(text.replace("f32", "f64").replace("spotrf", "dpotrf"))
    script = f"""
import numpy as np
from hloom_tools.replay.program import ReplayProgram
program = ReplayProgram.parse(open({str(tmp_path / "m.mlir")!r}).read(), source="m")
root, more = program.compile("off").run([np.eye(4) * 4])
print(len(program.devices), root.dtype, np.diag(root), more[0, 0])
"""
    result = run_python(script, XLA_FLAGS="")
    assert result.stdout.split("\n")[0] == "4 float64 [2. 2. 2. 2.] 5.0"


def test_the_interpreter_agrees() -> None:
    mesh = jax.make_mesh((8,), ("a",), axis_types=(AxisType.Auto,))
    x = jax.ShapeDtypeStruct((8, 4), "float32", sharding=NamedSharding(mesh, PartitionSpec("a")))

    def function(x: jax.Array, z: jax.Array, i: jax.Array, b: jax.Array) -> Any:
        # sinh is CHLO, which the interpreter does not know.
        y = jax.lax.with_sharding_constraint(
            jnp.sinh(x) @ x.T, NamedSharding(mesh, PartitionSpec(None, "a"))
        )
        return y, z * 2, i + i, ~b, y.astype(jnp.bfloat16), y.astype(jnp.float8_e5m2)

    others = [jax.ShapeDtypeStruct((3,), kind) for kind in ("complex64", "int4", "bool")]
    program = program_of(function, x, *others)
    given = inputs.random(program)
    names = [value.name for value in program.results]
    compared = compare(program.compile("off").run(given), interpret(program, given), names)
    assert compared.equal, compared.first_differing
    with pytest.raises(ReplayError, match="was not done with jit_function after 0.1 s"):
        interpret(program, given, limit_s=0.1)


def test_the_interpreter_tells_what_it_does_not_know() -> None:
    program = program_of(lambda x: jnp.linalg.cholesky(x.T @ x), X)
    with pytest.raises(ReplayError, match="cannot be interpreted: Unsupported op: .*potrf"):
        interpret(program, inputs.random(program))
