"""Whether plans and modules are what they were: hashes of both, to compare two versions of hloom.

    python -m benchmarks.plan_identity --out before.json        (no GPU and no compile)
    python -m benchmarks.plan_identity --against before.json    (exit status 1 on a difference)

Plans the eight benchmark programs for an H100 with `remat`, without a budget and with four, by the
dry run, with `barriers,capture` behind it and alone; then with the other passes, of which the last
module counts, or the words in which they refuse. Of a module its text is hashed, without locations
and with the names that hloom gives left open; of a plan its numbers, sorted, so that renamed fields
make no difference. An older version of hloom runs this file too, once the imports below fit it.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jax.extend.mlir import ir

from benchmarks.common.subjects import SUBJECTS
from hloom import targets
from hloom.passes.framework.base import Pass, Plan
from hloom.passes.framework.errors import PassError
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module
from hloom_tools.opt.job import dry_run

TARGET = "h100_sxm"

AFTER = "barriers,capture"
"""Passes that run behind each setting of remat, and alone."""

SPECS = ("", "remat", *(f"remat{{budget={each}}}" for each in ("75%", "50%", "25%", "min")))

OTHERS = (
    "fit{budget=50%}",
    "fit{budget=min}",
    "fit{moves=recompute+undo-checkpoint+chunk+split-loop+offload+accumulate budget=50%}",
    "chunk",
    "chunk{budget=50%}",
    "accumulate{microbatches=4}",
    "accumulate{microbatches=3 phases=8 dtype=keep}",
    "accumulate{budget=50%}",
    "one-hot,accumulate-in-place",
    "ragged",
    "split-loop",
    "offload",
    "undo-checkpoint",
    "uninitialized-stacks",
)
"""Passes of which the module is compared, and no number."""

_OWN_NAME = re.compile(r"hloom\.[A-Za-z_]\w*")

Hashes = dict[str, str]
"""By program, passes and what of them is hashed."""


class _Hashing:
    """Observes a run: the module as the last pass left it, and the numbers of every plan."""

    def __init__(self) -> None:
        self.modules: Hashes = {}
        self.numbers: list[float] = []

    def before(self, index: int, step: Pass, module: ir.Module) -> None:
        """Nothing: a module is hashed after a pass."""

    def after(self, index: int, step: Pass, plan: Plan, module: ir.Module) -> None:
        self.numbers += _numbers(plan.to_json())
        if step.name in ("remat", "capture"):
            self.modules[step.name] = _hash(_OWN_NAME.sub("hloom.NAME", _text(module)))


def _text(module: ir.Module) -> str:
    return str(module.operation.get_asm(enable_debug_info=False))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _numbers(found: Any) -> Iterator[float]:
    """Every number in a plan; its texts, its fields and their order may be others."""
    if isinstance(found, dict | list | tuple):
        for each in found.values() if isinstance(found, dict) else found:
            yield from _numbers(each)
    elif isinstance(found, int | float):
        yield found


def hashes_of(name: str, module: ir.Module, target: Target) -> Iterator[tuple[str, str]]:
    """What each setting makes of a module, which stays as it is: a key and a hash."""
    for spec in SPECS:
        pipeline = Pipeline.parse(",".join(filter(None, (spec, AFTER))))
        attempts = dry_run(pipeline, module, target).attempts
        seen = _Hashing()
        clone = clone_module(module)
        pipeline.run(clone, target=target, observers=[seen], attempts=attempts)
        seen.numbers += [size for each in attempts for size in (each.step_bytes, each.temp_bytes)]
        key = f"{name}, {spec or 'no remat'}"
        yield f"{key}, numbers of the plans", _hash(json.dumps(sorted(seen.numbers)))
        for step, one in seen.modules.items():
            yield f"{key}, module after {step}", one


def hash_after(spec: str, module: ir.Module, target: Target) -> str:
    """Of what the passes make of a module, which stays as it is, or of why they make nothing."""
    pipeline = Pipeline.parse(spec)
    clone = clone_module(module)
    try:
        attempts = dry_run(pipeline, module, target).attempts
        pipeline.run(clone, target=target, attempts=attempts)
    except PassError as error:
        return _hash(str(error))
    return _hash(_OWN_NAME.sub("hloom.NAME", _text(clone)))


def measure(programs: Sequence[str]) -> Hashes:
    """The hashes of some of the benchmark programs, traced for the CPU."""
    target = targets.load(TARGET)
    found: Hashes = {}
    for name in programs:
        module = SUBJECTS[name].lower(None, None).compiler_ir()
        found[f"{name}, traced"] = _hash(_text(module))
        others = ((f"{name}, {spec}", hash_after(spec, module, target)) for spec in OTHERS)
        for key, one in itertools.chain(hashes_of(name, module, target), others):
            found[key] = one
            print(f"{one}  {key}", flush=True)
    return found


def differences(old: Hashes, new: Hashes) -> list[str]:
    """The keys of the new hashes whose old ones are others, or missing."""
    return [key for key, one in new.items() if old.get(key) != one]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the hashes, writes and compares them; gives the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plan_identity")
    parser.add_argument("programs", nargs="*", help="which; all where none is named")
    parser.add_argument("--out", type=Path, help="write the hashes to this file, as JSON")
    parser.add_argument("--against", type=Path, help="compare with the hashes in this file")
    chosen = parser.parse_args(arguments)
    if unknown := set(chosen.programs) - SUBJECTS.keys():
        parser.error(f"no program {', '.join(sorted(unknown))}; wants {', '.join(SUBJECTS)}")
    found = measure(chosen.programs or list(SUBJECTS))
    if chosen.out:
        chosen.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if chosen.against is None:
        return 0
    wrong = differences(json.loads(chosen.against.read_text("utf-8")), found)
    for key in wrong:
        print(f"differs: {key}")
    print(f"{len(found) - len(wrong)} of {len(found)} equal")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
