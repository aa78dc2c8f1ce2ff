"""Programs compiled for TPUs on a machine without one: needs the package libtpu."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import hloom
from benchmarks.programs.gpt import Gpt
from hloom import targets
from hloom.targets import deviceless

TPUS = ("v4", "v5e", "v5p", "v6e")
SMALL = Gpt(scanned=True, layers=4, width=256, heads=2, batch=4, sequence=512)


def test_a_missing_compiler_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deviceless, "find_spec", lambda name: None)
    with pytest.raises(deviceless.MissingCompilerError, match=r"pip install 'hloom\[tpu\]'"):
        deviceless.placement("v5p")


@pytest.mark.tpu
@pytest.mark.parametrize("name", TPUS)
def test_a_tpu_that_is_not_here_is_the_target(name: str) -> None:
    x = jax.ShapeDtypeStruct((8, 128), "float32", sharding=deviceless.placement(name))
    [device] = x.sharding.device_set
    assert device.device_kind in targets.device_kinds(name)
    step = jax.jit(lambda x: jnp.sum(jnp.sin(x) @ x.T))
    compiled = step.lower(x).compile(compiler_options={"hloom": "remat"})
    assert "T(8,128)" in compiled.as_text()
    assert hloom.records()[-1].platform == "tpu"


@pytest.mark.tpu
def test_a_slice_has_the_devices_asked_for() -> None:
    for count in (1, 2, 4, 8):
        found = deviceless.mesh("v5p", count)
        assert found.devices.shape == (count,)
        assert found.axis_names == ("device",)
        assert len({device.id for device in found.devices.flat}) == count


@pytest.mark.tpu
def test_a_small_gpt_for_a_v5p(tmp_path: Path) -> None:
    """Its memory falls, and the tools plan what is dumped of it for the same target.

    Of HBM it takes 140.7 MiB under `remat`, and 177.9 with the buffers in the cores' memory (libtpu
    0.0.42.1), where it takes 306.0 and 384.5 as it is.
    """
    lowered = SMALL.lower(deviceless.placement("v5p"))
    plain = lowered.compile(compiler_options={"hloom": "off"})
    with hloom.dump(to=str(tmp_path)):
        smaller = lowered.compile(compiler_options={"hloom": "remat"})
    before, after = (each.memory_analysis() for each in (plain, smaller))
    assert after.temp_size_in_bytes < 0.47 * before.temp_size_in_bytes
    assert after.peak_memory_in_bytes < 0.465 * before.peak_memory_in_bytes
    assert hloom.records()[-1].fell_back is None

    [folder] = tmp_path.glob("jit_*")
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["target"]["name"] == "v5p"
    assert math.isclose(manifest["target"]["speed"]["bytes_per_s"], 2.765e12)
    program = next(iter(sorted(folder.glob("*-input*.mlir"))))
    done = subprocess.run(
        [sys.executable, "-m", "hloom", "budgets", str(program), "--target", "v5p"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "v5p" in done.stdout
