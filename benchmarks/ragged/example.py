"""The example that trains a mixture of experts, as a user runs it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parents[2] / "examples" / "mixture_of_experts.py"
DEVICES = 8
EXPERTS = 4  # of each device
WAYS: dict[str, tuple[str, tuple[str, ...]]] = {
    "each expert on each token": ("off", ("--dense",)),
    "exchanged, XLA's products": ("barriers", ()),
    "exchanged, `ragged`": ("barriers,ragged", ()),
}
"""By name: what `JAX_HLOOM` is set to, and the script's arguments."""


def train_example() -> dict[str, Any]:
    """By way: the losses of its steps, and the median milliseconds of one, on virtual devices."""
    return {name: _train(spec, arguments) for name, (spec, arguments) in WAYS.items()}


def _train(spec: str, arguments: tuple[str, ...]) -> dict[str, Any]:
    run = subprocess.run(
        [sys.executable, str(SCRIPT), f"--experts={EXPERTS}", *arguments],
        env=os.environ
        | {
            "JAX_HLOOM": spec,
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={DEVICES}",
        },
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    [milliseconds] = re.findall(r"a step takes (\S+) ms", run.stdout)
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", run.stdout)]
    return {"losses": losses, "step_ms": float(milliseconds)}
