"""The largest owners of the peak name lines of the user's file, whatever library a model is of."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest
from jax.extend.mlir import ir
from support.programs import libraries

from hloom._jax.executables import optimized_text
from hloom.passes.analysis.memory_model.profile import memory_profile
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module
from hloom.passes.ir.names import is_installed
from hloom.xla.live_ranges import live_ranges

LARGEST = 8

programs = pytest.mark.parametrize("make", libraries.LIBRARY_PROGRAMS)


@functools.cache
def lowered(make: Callable[[], Any]) -> Any:
    function, arguments = make()
    return jax.jit(function).lower(*arguments)


def is_users(line: str) -> bool:
    return line.rpartition(":")[0] == libraries.__file__


@programs
def test_owners_by_the_model_name_the_users_lines(make: Callable[[], Any]) -> None:
    module = clone_module(lowered(make).compiler_ir())
    with module.context, ir.Location.unknown():
        Pipeline.parse("inline").run(module, target=Target())
        owners = memory_profile(module).owners[:LARGEST]
    assert len(owners) >= 5
    assert [owner for owner in owners if not is_users(owner.line)] == []
    for library in (owner.source.library for owner in owners):
        assert not library or is_installed(library.rpartition(":")[0])
    # The library is not forgotten.
    assert any(owner.source.library for owner in owners)


@programs
def test_owners_by_xla_name_the_users_lines(make: Callable[[], Any], tmp_path: Path) -> None:
    options = {"xla_dump_to": str(tmp_path), "xla_dump_hlo_as_text": True, "hloom": "off"}
    executable = lowered(make).compile(compiler_options=options)
    (assignment,) = tmp_path.glob("*optimizations-buffer-assignment.txt")
    (ranges,) = tmp_path.glob("*optimizations-live-range.txt")
    text = optimized_text(executable.runtime_executable())
    found: Any = live_ranges(assignment.read_text(), ranges.read_text(), text)
    owners = [found["values"][number] for number in found["at_peak"]][:LARGEST]
    assert len(owners) >= 5
    assert [owner for owner in owners if not is_users(owner["line"])] == []
    assert all(owner["function"] for owner in owners)
    # The library is not forgotten.
    assert any(is_installed(each.get("library", "")) for each in found["values"])
