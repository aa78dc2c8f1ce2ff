"""What the devices of a compiled program send stands in its record, beside what XLA says."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from support.devices import mlps
from support.devices.meshes import each_kind_of_axes, mesh_of

import hloom
from hloom import policy
from hloom.compiling import between_devices
from hloom.passes.analysis.shardings import exchanges
from hloom.passes.framework.text import size


def test_what_is_predicted_stands_beside_xla_s_and_in_the_log(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "_warned", set())
    monkeypatch.setenv("HLOOM_LOG", "on")
    mlps.lowered(constrained=True).compile(compiler_options={"hloom": "cse"})
    sent = hloom.records()[-1].sent
    assert sent.predicted_bytes["all-reduce"] == sent.xla_bytes["all-reduce"]
    predicted, by_xla = (sum(each.values()) for each in (sent.predicted_bytes, sent.xla_bytes))
    assert predicted == pytest.approx(by_xla, rel=0.05)
    assert sent.summary.startswith(f"sends {size(by_xla)} a step, ")
    assert "% of it at mlps.py:" in sent.summary
    assert "foreseen" not in sent.summary
    assert sent.overview["sent_bytes"] == by_xla
    assert f"hloom: jit_loss: {sent.summary}" in capsys.readouterr().err


def test_a_value_that_xla_gathers_though_it_was_not_foreseen_is_told_by_xla_s_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An axis moves between dimensions while it splits further: XLA warns of an "involuntary full
    rematerialization" (jax#21562). This one is foreseen, but not here."""
    monkeypatch.setattr(exchanges, "gathered_dimensions", lambda *_: frozenset())
    mesh = mesh_of(AxisType.Auto, x=4, y=2)
    wide = NamedSharding(mesh, PartitionSpec("y", None, "x"))
    tall = NamedSharding(mesh, PartitionSpec(None, ("x", "y"), None))

    def mixed(a: jax.Array, b: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(a + b, tall)

    value = jax.ShapeDtypeStruct((128, 128, 128), jnp.float32)
    step = jax.jit(mixed, in_shardings=(wide, wide), out_shardings=tall)
    step.lower(value, value).compile(compiler_options={"hloom": "cse"})
    sent = hloom.records()[-1].sent
    assert sent is not None
    whole_bytes = 128**3 * 4
    assert sent.xla_bytes == {"all-gather": whole_bytes * 7 // 8}
    assert sent.summary.startswith("sends 7.00 MiB a step, 100 % of it at test_between_devices.py:")
    foreseen = size(sum(sent.predicted_bytes.values()))
    told = f"({foreseen} were foreseen: XLA gathers the whole of a value there)"
    assert sent.summary.endswith(told)
    assert sent.overview["summary"] == sent.summary
    assert sent.overview["sent_bytes"] == whole_bytes * 7 // 8


@each_kind_of_axes
def test_what_a_program_sends_by_itself(axes: AxisType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(between_devices, "LEAST_BYTES", 1)
    mesh = mesh_of(axes, a=8)
    x = jnp.zeros((512, 64), device=NamedSharding(mesh, PartitionSpec("a")))
    summed = jax.shard_map(
        lambda x: jax.lax.psum(jnp.tanh(x), "a"),
        mesh=mesh,
        in_specs=PartitionSpec("a"),
        out_specs=PartitionSpec(),
    )
    jax.jit(summed, compiler_options={"hloom": "cse"}).lower(x).compile()
    sent = hloom.records()[-1].sent
    assert sent.predicted_bytes == sent.xla_bytes == {"all-reduce": 2 * 7 * 64 * 64 * 4 // 8}
    assert sent.summary == ""  # it is little


def test_one_device_and_small_programs_have_none() -> None:
    jax.jit(jnp.tanh, compiler_options={"hloom": "cse"}).lower(jnp.ones((1024, 1024))).compile()
    assert hloom.records()[-1].sent is None
    mesh = mesh_of(AxisType.Auto, a=8)
    x = jnp.zeros((8, 8), device=NamedSharding(mesh, PartitionSpec("a")))
    jax.jit(lambda x: x.sum(), compiler_options={"hloom": "cse"}).lower(x).compile()
    assert hloom.records()[-1].sent is None


def test_what_shardy_cannot_tell_stops_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_args: object) -> None:
        raise ValueError("Shardy's stage fails")

    monkeypatch.setattr(between_devices.Overview, "of", fails)
    with pytest.raises(ValueError, match="fails"):
        mlps.lowered(constrained=True).compile(compiler_options={"hloom": "cse"})
    monkeypatch.setattr(between_devices, "is_strict", lambda: False)
    mlps.lowered(constrained=True).compile(compiler_options={"hloom": "cse"})
    assert hloom.records()[-1].sent is None
