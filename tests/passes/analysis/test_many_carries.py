"""Planning grows with the carries of loops and not with their square: counted, not timed."""

from __future__ import annotations

import cProfile
from collections.abc import Callable
from typing import Any, cast

import jax
import pytest
from jax.extend.mlir import ir

from benchmarks.programs import carries
from hloom.passes.framework.pipeline import Pipeline, PipelineResult
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk

Program = Callable[[int], tuple[Any, tuple[Any, ...]]]


_Operations: Any = type(iter(ir.Module.create(ir.Location.unknown(ir.Context())).body.operations))
"""The bindings' iterator over the operations of a block."""


class Work:
    """What a run does: Python's calls, operations that are walked over, operands that are hashed.

    The last two happen inside of the bindings, where a profiler sees nothing.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.walked = self.hashed = 0
        hash_of, following = ir.Operation.__hash__, _Operations.__next__

        def hash_counted(op: ir.Operation) -> int:
            self.hashed += len(op.operands)
            return hash_of(op)

        def next_counted(iterator: Any) -> Any:
            self.walked += 1
            return following(iterator)

        monkeypatch.setattr(ir.Operation, "__hash__", hash_counted)
        monkeypatch.setattr(_Operations, "__next__", next_counted)

    def of(self, run: Callable[[], object]) -> tuple[int, int, int]:
        """Calls, operations and operands of one run."""
        self.walked = self.hashed = 0
        # Counts in C what a function of sys.setprofile would be called for.
        profile = cProfile.Profile(builtins=False)
        with profile:
            run()
        calls = sum(entry.callcount for entry in profile.getstats())
        return calls, self.walked, self.hashed


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    return Work(monkeypatch)


@pytest.mark.once
@pytest.mark.parametrize("program", [carries.reinforcement, carries.neighbours])
@pytest.mark.parametrize("spec", ["remat", "remat{budget=1KiB}"])
def test_planning_is_linear_in_carries(program: Program, spec: str, work: Work) -> None:
    few, many = (planning_work(lowered(program, count), spec, work) for count in (32, 64))
    for less, more in zip(few, many, strict=True):
        assert more < 2.25 * less


def planning_work(module: ir.Module, spec: str, work: Work) -> list[float]:
    """The work for each setting that was tried: how many are is up to the program."""
    results: list[PipelineResult] = []
    found = work.of(lambda: results.append(Pipeline.parse(spec).run(module, target=Target())))
    record = cast(dict[str, Any], results[0].runs[-1].plan.get("record", {}))
    return [part / len(record.get("considered", [None])) for part in found]


def lowered(program: Program, count: int) -> ir.Module:
    function, arguments = program(count)
    return cast(ir.Module, jax.jit(function).lower(*arguments).compiler_ir())


def test_a_terminator_is_found_without_walking_to_it(work: Work) -> None:
    module = lowered(carries.neighbours, 4)
    block = walk.functions(module)["main"].regions[0].blocks[0]
    assert work.of(lambda: walk.terminator(block))[1] == 0
    assert walk.terminator(block).name == "func.return"
