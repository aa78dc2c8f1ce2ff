"""Dumps of `fit`, run again: the recorded plan, and the decision that is wrong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from support.commands import Command

import hloom
from hloom.dumps.read.dump import open_dump
from hloom.passes.chunk import Chunk
from hloom.passes.fit import Fit
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom.passes.recompute.scan import rewrite
from hloom_tools.replay.decisions import recorded_attempts

FitDump = tuple[Path, hloom.CompileRecord]


def test_the_attempts_before_the_plan_are_those_of_the_run(fit_dump: FitDump) -> None:
    folder, record = fit_dump
    [module] = open_dump(folder).modules
    [step] = Pipeline.parse(module.spec).passes
    assert isinstance(step, Fit)
    found = recorded_attempts(module, step)
    earlier = record.attempts[: record.best_attempt]
    assert [each.temp_bytes for each in found] == [each.temp_bytes for each in earlier]
    assert found[0].record.candidate is None


def test_it_is_planned_as_it_was_and_changes_nothing(fit_dump: FitDump, command: Command) -> None:
    status, text = command("bisect", fit_dump[0]).both
    assert status == 0, text
    assert "The passes change no result." in text
    assert "Note" not in text


def test_a_wrong_clone_is_found(
    fit_dump: FitDump, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = rewrite.clone_before

    def clone_before(anchor: Any, ops: Any, replacements: Any) -> Any:
        made = original(anchor, ops, replacements)
        for value, clone in list(made.items()):
            if clone.owner.operation.name == "stablehlo.subtract":
                made[value] = _negated(clone)
        return made

    monkeypatch.setattr(rewrite, "clone_before", clone_before)
    status, text = command("bisect", fit_dump[0]).both
    assert status == 1, text
    assert "It is 'fit': result" in text
    assert re.search(r"Decision \d+ of \d+: \S*/sub \(.*fit_dump\.py:\d+\) of a scan is", text)
    assert re.search(r"--decision 05-fit/remat/scan-\d+", text), text


def test_a_wrong_move_is_found(
    fit_dump: FitDump, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_, apply_ = Chunk.plan, Chunk.apply
    planned: list[ir.Module] = []

    def plan(self: Chunk, module: ir.Module, target: Target) -> Any:
        planned.append(module)
        return plan_(self, module, target)

    def apply(self: Chunk, plan: Any) -> None:
        apply_(self, plan)
        found = walk.operations(planned[-1].operation)
        log = next(op for op in found if op.name == "stablehlo.log")
        _negated(log.results[0])

    monkeypatch.setattr(Chunk, "plan", plan)
    monkeypatch.setattr(Chunk, "apply", apply)
    status, text = command("bisect", fit_dump[0]).both
    assert status == 1, text
    assert "It is 'fit': result" in text
    assert "--decision 05-fit/chunk/region-0" in text


def _negated(value: ir.Value) -> ir.Value:
    """The value's negative, in its place everywhere."""
    with ir.InsertionPoint.after(value.owner.operation), value.location:
        made = stablehlo.NegOp(value).result
    value.replace_all_uses_except(made, made.owner.operation)
    return made
