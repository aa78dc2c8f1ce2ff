"""`hloom budgets` of a step that `hloom.split` takes apart: bytes against added work."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from support.programs import normal

import hloom
from hloom_tools.budgets.command import add_arguments, run

ROWS, WIDTH, LAYERS = 8, 16, 4
W, X = 0.2 * normal(LAYERS, WIDTH, WIDTH), normal(ROWS, WIDTH, seed=1)


def chain(w: jax.Array, x: jax.Array) -> jax.Array:
    for number in range(LAYERS):
        x = jnp.sin(x @ w[number])
    return x.sum()


def asked(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The status of `hloom budgets`, and what it prints."""
    import argparse

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    status = run(parser.parse_args(arguments))
    return status, *capsys.readouterr()


def test_bytes_of_the_boundary_against_added_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with hloom.dump(to=tmp_path / "dump"):
        hloom.split(chain)[0].eval_shape(W, X)
    folder, file = str(tmp_path / "dump"), tmp_path / "found.json"
    status, out, _ = asked(capsys, folder, "--target", "h100_sxm", "--json", str(file))
    assert status == 0
    assert "jit_chain on h100_sxm, split: residuals against added work, predicted" in out
    points = json.loads(file.read_text())["points"]
    step = ROWS * WIDTH * 4
    assert [point["residual_bytes"] // step for point in points] == [4, 3, 2, 1, 0]
    assert [round(point["added_share"] * 3 * LAYERS) for point in points] == [0, 1, 2, 3, 4]
    assert points[0]["added_seconds"] == 0 < points[1]["added_seconds"]

    status, out, _ = asked(capsys, folder, "--budget", "50%", "--budget", "min",
                           "--svg", str(tmp_path / "a.svg"))  # fmt: skip
    assert status == 0
    assert "1.00 KiB" in out
    assert "residuals on each device" in (tmp_path / "a.svg").read_text()


def test_a_bound_below_the_floor_and_one_that_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def of_a_callback(w: jax.Array, x: jax.Array) -> jax.Array:
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        known = jax.pure_callback(lambda a: a, shape, jax.lax.stop_gradient(x))
        return jnp.sin(known @ w).sum()

    with hloom.dump(to=tmp_path / "dump"):
        hloom.split(of_a_callback)[0].eval_shape(W[0], X)
    status, out, _ = asked(capsys, str(tmp_path / "dump"), "--budget", "256B", "--budget", "min")
    assert status == 0
    words = " ".join(out.split())
    assert "residuals=256 B is less than the least that can cross: 512 B on a device" in words
    assert out.count("512 B") > 1
    status, _, error = asked(capsys, str(tmp_path / "dump"), "--budget", "fit")
    assert status == 1
    assert "have no device that they are to fit; wanted a size" in error
