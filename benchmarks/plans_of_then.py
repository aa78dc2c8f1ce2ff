"""Compiles the steps that a device timed by the hloom that planned them.

    git worktree add --detach build/then 9aa42ac82e
    pip install -e build/then 'jax[cuda13]==0.11.2'   (in an environment of its own)
    cd build/then
    PYTHON ../../benchmarks/plans_of_then.py ../../benchmarks/results/gpu_nvidia_h200.json

A step that hloom planned since may be another program in equal memory, above all under a budget,
which both fill. XLA's texts go to build/time_error of the results' checkout, where
`benchmarks.time_error` reads them, with what the planner foresaw: the same seconds to the last
digit tell that the plan is the one that was timed.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

import jax

from benchmarks.gpu.parts import steps
from hloom.targets import deviceless

TARGET = "h200"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM")
    chosen = parser.parse_args()
    deviceless.prepare()
    jax.config.update("jax_enable_compilation_cache", False)
    texts = chosen.results.resolve().parents[2] / "build" / "time_error" / TARGET / jax.__version__
    texts.mkdir(parents=True, exist_ok=True)
    [items] = (entry["items"] for entry in json.loads(chosen.results.read_text("utf-8")).values())
    for name, item in items.items():
        part, _, rest = name.partition("/")
        program, _, label = rest.partition("/")
        if part != "step" or not label.startswith("fit") or "offload" in label:
            continue
        if program in (chosen.programs or [program]):
            configuration = {"label": label, "spec": item["result"]["spec"]}
            placement = deviceless.placement(TARGET)
            executable, _, record = steps.compiled(program, configuration, False, placement)
            temp_bytes = executable.memory_analysis().temp_size_in_bytes
            file = texts / "{}_{}.hlo".format(program, re.sub(r"\W+", "_", label))
            file.write_text(f"{temp_bytes}\n{executable.as_text()}", encoding="utf-8")
            said = steps._said(record)  # type: ignore[attr-defined] # its name then
            file.with_suffix(".json").write_text(json.dumps(said), encoding="utf-8")


if __name__ == "__main__":
    main()
