"""Malformed custom calls on the CPU: an error with a text each, never a crash.

The second time under the address and undefined behaviour sanitizers: never an access out of bounds.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from support import ROOT, often
from support.devices.native_code import CSRC, compile_native, compiler
from support.malformed.calls import KINDS, Case, cases

from hloom.runtime import load_library

pytestmark = pytest.mark.long

WORKER = ROOT / "tests" / "support" / "malformed" / "worker.py"

SANITIZED = often(6, 1)
"""Of so many cases one is tried under the sanitizers, where each takes three times as long."""

BY_JAX = ("valid_calls", "valid_exchanges", "counts", "mixtures")
"""The kinds of calls in which XLA has a part that may differ between versions."""

MOST_CRASHES = 5
"""After so many the rest is not tried."""


def run_all(library: Path, chosen: Iterable[str], **environment: str) -> dict[str, dict[str, Any]]:
    """What became of each case: "results", an "error", or the "crash" that it ended with."""
    told: dict[str, dict[str, Any]] = {}
    left = list(chosen)
    crashes = 0
    while left and crashes < MOST_CRASHES:
        result = subprocess.run(
            [sys.executable, str(WORKER), str(library)],
            input="\n".join(left),
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=800,
        )
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        told |= {line.pop("case"): line for line in lines}
        left = left[len(lines) :]
        if left:
            crashes += 1
            told[left.pop(0)] = {"crash": f"{result.returncode}: {result.stderr[-2000:]}"}
    return told


def is_right(case: Case, told: dict[str, Any]) -> bool:
    if case.error is not None:
        return re.search(case.error, told.get("error", ""), re.DOTALL) is not None
    results = told.get("results", [None])
    return (
        case.results is not None
        and len(results) == len(case.results)
        and all(
            wanted is None or wanted == got
            for wanted, got in zip(case.results, results, strict=True)
        )
    )


def check(library: Path, *kinds: str, every: int = 1, **environment: str) -> None:
    """Tries the cases of these kinds, or of each kind every second, third, …"""
    chosen = {
        f"{kind}\t{name}": case
        for kind in kinds
        for name, case in islice(cases(kind).items(), 0, None, every)
    }
    told = run_all(library, chosen, **environment)
    wrong = {
        name: (case.error or case.results, told.get(name))
        for name, case in chosen.items()
        if not is_right(case, told.get(name, {}))
    }
    assert wrong == {}


def test_there_are_hundreds() -> None:
    every = [case for kind in KINDS for case in cases(kind).values()]
    assert sum(case.error is not None for case in every) > 400


def test_malformed_calls_are_errors() -> None:
    check(load_library().path, *BY_JAX)


# What the handlers themselves check is the same whichever JAX calls them.
@pytest.mark.once
def test_what_handlers_refuse_is_an_error() -> None:
    check(load_library().path, *(kind for kind in KINDS if kind not in BY_JAX))


@pytest.mark.once
@pytest.mark.timeout(900)
@pytest.mark.skipif(platform.machine() != "x86_64", reason="tried on x86_64 alone")
def test_malformed_calls_stay_inside_their_buffers(tmp_path: Path) -> None:
    # One test, so that the library is built once and not by every worker.
    flags = ("-O0", "-g1", "-fPIC", "-shared", "-fsanitize=address,undefined")
    library = tmp_path / "libhloom_runtime.so"
    sources = sorted([*CSRC.glob("*.cc"), *CSRC.glob("cpu/*.cc")])
    compile_native(library, sources, *flags, "-fno-sanitize-recover=all")
    # The sanitizer comes before all else, and with it what it asks for as it starts.
    preload = " ".join(map(_of_compiler, ("libasan.so", "libstdc++.so.6")))
    # And one process for all of them, for under a sanitizer that starts slowly.
    check(library, *KINDS, every=SANITIZED, LD_PRELOAD=preload, ASAN_OPTIONS="detect_leaks=0")


def _of_compiler(name: str) -> str:
    """The path of one of the compiler's own libraries."""
    command = [compiler() or "c++", f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
