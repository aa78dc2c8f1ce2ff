"""The examples as a user runs them: no change to the program, one variable set."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass

import pytest
from support import ROOT

pytestmark = pytest.mark.long

EXAMPLES = ROOT / "examples"


@dataclass(frozen=True)
class Output:
    losses: list[float]
    temp_mib: float


def run_example(name: str, **environment: str) -> Output:
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stderr
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", result.stdout)]
    [memory] = re.findall(r"temporary memory of a step: (\S+) MiB", result.stdout)
    return Output(losses, float(memory))


@pytest.mark.once
def test_pipeline_train() -> None:
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    plain = run_example("pipeline_train.py", JAX_HLOOM="off", **flags)
    pipeline = run_example(
        "pipeline_train.py", JAX_HLOOM="pipeline{axis=stage microbatches=8}", **flags
    )
    assert len(plain.losses) == 20
    assert plain.losses[-1] < plain.losses[0]
    assert pipeline.losses == pytest.approx(plain.losses, rel=1e-4)
    assert pipeline.temp_mib <= 0.4 * plain.temp_mib


# On the newest version tests of the demo train a model of Flax with and without hloom.
@pytest.mark.once
def test_flax_train() -> None:
    script = EXAMPLES / "flax_train.py"
    lines = script.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if "hloom" in line.lower()] == [
        "    JAX_HLOOM=remat python examples/flax_train.py"
    ]
    plain = run_example(script.name)
    smaller = run_example(script.name, JAX_HLOOM="remat")
    assert len(plain.losses) == 20
    assert plain.losses[-1] < plain.losses[0]
    assert smaller.losses == pytest.approx(plain.losses, rel=1e-4)
    assert smaller.temp_mib <= 0.6 * plain.temp_mib
