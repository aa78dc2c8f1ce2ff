"""`hloom shardings`: what each line of a program makes its devices send."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from support.devices.meshes import each_kind_of_axes, mesh_of

from hloom_cli import main


def written(folder: Path, axes: jax.sharding.AxisType, *split: str | None) -> Path:
    """A product over an axis that is split as asked, as a file."""
    mesh = mesh_of(axes, a=8)
    x, w = (
        jax.ShapeDtypeStruct((64, 64), "float32", sharding=NamedSharding(mesh, spec))
        for spec in (PartitionSpec(None, *split), PartitionSpec(*split))
    )

    def product(x: jax.Array, w: jax.Array) -> jax.Array:
        if axes is jax.sharding.AxisType.Explicit:
            return jnp.dot(x, w, out_sharding=NamedSharding(mesh, PartitionSpec()))
        return jnp.tanh(x @ w)

    file = folder / "step.mlir"
    module = jax.jit(product).lower(x, w).compiler_ir()
    file.write_text(module.operation.get_asm(enable_debug_info=True))
    return file


@each_kind_of_axes
def test_what_is_sent_is_told_by_line(
    axes: jax.sharding.AxisType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["shardings", str(written(tmp_path, axes, "a"))]) == 0
    first, line = capsys.readouterr().out.splitlines()
    assert first.startswith("Each device sends 28.0 KiB in a step, ")
    assert first.endswith(" of h100_sxm.")
    assert "1 all-reduce of 64x64xf32" in line
    assert "test_shardings.py:" in line


def test_nothing_is_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shardings", str(written(tmp_path, jax.sharding.AxisType.Auto, None))]) == 0
    assert capsys.readouterr().out.startswith("Nothing is sent")


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "step.mlir").write_text("func.func @main(")
    assert main(["shardings", str(tmp_path / "step.mlir")]) == 1
    assert "step.mlir:" in capsys.readouterr().err
    assert main(["shardings", str(tmp_path / "none")]) == 1
    assert "hloom shardings: " in capsys.readouterr().err
