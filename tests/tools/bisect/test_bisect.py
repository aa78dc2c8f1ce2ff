"""`hloom bisect`: the pass, and in `remat` the single clone, that is wrong is found."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from support import registering
from support.commands import Command
from support.dumps.samples import capture, execution, write_sample
from support.toy_passes import Fail, ReplaceTwo, Touch

import hloom
from hloom.dumps.read.dump import open_dump
from hloom.dumps.write.writer import flush, write_step
from hloom.log import terminal
from hloom.passes.attention import write
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.recompute.block import rewrite
from hloom.passes.recompute.scan import rewrite as scan_rewrite
from hloom_tools.bisect.search import ResultsProbe, first_bad
from hloom_tools.replay import ReplayError
from hloom_tools.replay.comparison import Tolerance
from hloom_tools.replay.decisions import other_plans, replayed
from hloom_tools.replay.program import ReplayProgram, Runnable

Clone = MutableMapping[ir.Value, ir.Value]
Spoil = Callable[[ir.Value], ir.Value]
SpoilClones = Callable[[str, Spoil], None]


_toys = registering(ReplaceTwo, Touch, Fail)


@pytest.fixture
def spoil_clones(monkeypatch: pytest.MonkeyPatch) -> SpoilClones:
    """Makes `remat` put something else in the place of each clone of an operation."""

    def spoil(operation: str, by: Spoil) -> None:
        original = rewrite.clone_before

        def clone_before(anchor: Any, ops: Any, replacements: Clone) -> Clone:
            made = original(anchor, ops, replacements)
            for value, clone in list(made.items()):
                if clone.owner.operation.name != operation:
                    continue
                with ir.InsertionPoint.after(clone.owner.operation), clone.location:
                    made[value] = by(clone)
                clone.replace_all_uses_except(made[value], _first_reader(clone))
            return made

        for module in (rewrite, scan_rewrite):
            monkeypatch.setattr(module, "clone_before", clone_before)

    return spoil


def _first_reader(value: ir.Value) -> ir.Operation:
    """The operation right behind the one that makes a value: the first of what spoils it."""
    maker = value.owner.operation
    operations = [view.operation for view in maker.block.operations]
    return operations[operations.index(maker) + 1]


def negated(value: ir.Value) -> ir.Value:
    return stablehlo.NegOp(value).result


def sorted_of_many(value: ir.Value) -> ir.Value:
    """The value again, by way of a large one that has to be in memory."""
    type_ = ir.RankedTensorType(value.type)
    many = ir.RankedTensorType.get([64, *type_.shape], type_.element_type)
    axes = ir.DenseI64ArrayAttr.get(list(range(1, len(many.shape))))
    wide = stablehlo.BroadcastInDimOp(many, value, axes)
    sort = stablehlo.SortOp([many], [wide.result], dimension=0)
    scalar = ir.RankedTensorType.get([], type_.element_type)
    block = sort.regions[0].blocks.append(scalar, scalar)
    with ir.InsertionPoint(block):
        less = stablehlo.CompareOp(*block.arguments, stablehlo.ComparisonDirectionAttr.get("LT"))
        stablehlo.ReturnOp([less.result])
    ends = [1, *type_.shape]
    one = stablehlo.SliceOp(sort.results[0], [0] * len(ends), ends, [1] * len(ends)).result
    return stablehlo.ReshapeOp(type_, one).result


def straight_step(w: jax.Array, x: jax.Array) -> Any:
    """A gradient of three layers, one after the other."""

    def loss(w: jax.Array) -> jax.Array:
        y = x
        for layer in w:
            z = y @ layer
            y = jnp.tanh(z) * jnp.cos(z) + y
        return (y**2).mean()

    return jax.value_and_grad(loss)(w)


def straight_arguments() -> tuple[jax.Array, ...]:
    draw = np.random.default_rng(0)
    w, x = draw.normal(size=(3, 16, 16)) / 4, draw.normal(size=(512, 16))
    return jnp.asarray(w, jnp.float32), jnp.asarray(x, jnp.float32)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dump of three layers one after the other."""
    found = execution(straight_step, straight_arguments(), spec="remat{min_bytes=0}")
    return write_step(capture(tmp_path_factory.mktemp("straight"), [found])).parent


@pytest.fixture(scope="module")
def scanned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dump of layers in a scan."""
    return write_sample(tmp_path_factory.mktemp("scanned"))


def repeated(command: Command, text: str) -> tuple[int, str]:
    """The command that the text ends with, run."""
    hloom, *words = shlex.split(text.strip().splitlines()[-1])
    assert hloom == "hloom"
    return command(*words).both


def test_right_passes_are_told_so(scanned: Path, command: Command) -> None:
    status, text = command("bisect", scanned).both
    assert status == 0, text
    assert "The passes change no result." in text
    assert "Note" not in text


def test_a_person_sees_what_is_compiled(
    scanned: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(terminal.board, "show", lambda _, text: shown.append(text))
    monkeypatch.setattr(terminal, "is_interactive", lambda: True)
    assert command("replay", scanned, "--repeat", 0).status == 0
    steps = [each.split()[1] for each in shown]
    assert steps == ["compiling", "compiling", "running", "running"]
    assert shown[0] == "hloom: compiling with 'off'"
    assert shown[1].endswith("remat'")


def test_a_wrong_pass_is_found(straight: Path, tmp_path: Path, command: Command) -> None:
    spec = "cse,touch,replace-two{by=5.0},remat{min_bytes=0}"
    status, text = command("bisect", straight, "-p", spec, "--write", str(tmp_path / "found")).both
    assert status == 1, text
    assert re.search(r"It is 'replace-two': result.* differs in \d+ of \d+", text), text
    assert "Its plan cannot be divided." in text
    without, with_it = ((tmp_path / "found" / f"{n}.mlir").read_text() for n in ("without", "with"))
    assert "dense<2.0" in without
    assert "dense<2.0" not in with_it
    assert "dense<5.0" in with_it
    status, text = repeated(command, text)
    assert status == 1, text
    assert "replace-two" in text


def test_a_wrong_preparation_is_found(
    straight: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def apply(self: Touch, plan: Any) -> None:
        for function in plan.operations:
            function.attributes["touched"] = ir.UnitAttr.get()
        ReplaceTwo(by=7.0).apply(ReplaceTwo().plan(plan.module, Target()))

    monkeypatch.setattr(Touch, "apply", apply)
    status, text = command("bisect", straight, "-p", "touch").both
    assert status == 1, text
    assert "It is 'touch'" in text


def test_a_wrong_clone_in_a_scan_is_found(
    scanned: Path, command: Command, spoil_clones: SpoilClones
) -> None:
    spoil_clones("stablehlo.sine", negated)
    status, text = command("bisect", scanned).both
    assert status == 1, text
    assert "It is 'remat': result" in text
    found = re.search(r"Decision \d+ of \d+: (.*) is computed again before (.*)\.\n", text)
    assert found, text
    assert re.search(r"/sin \(.*samples\.py:\d+\) of a scan$", found[1])
    assert re.search(r"transpose.*samples\.py:\d+\)$", found[2])
    assert re.search(r"with the \d+ before it: the same results", text)
    status, again = repeated(command, text)
    assert status == 1, again
    assert "/sin (" in again


def test_a_wrong_clone_in_a_straight_line_is_found(
    straight: Path, command: Command, spoil_clones: SpoilClones
) -> None:
    spoil_clones("stablehlo.tanh", negated)
    status, text = command("bisect", straight).both
    assert status == 1, text
    assert re.search(r"Decision \d+ of \d+: \S*/tanh \(.*test_bisect\.py:\d+\) is computed", text)
    assert re.search(r"--decision 05-remat/block-\d+/window-\d+/clone-\d+", text)
    compiles = int(re.search(r"(\d+) compiles", text)[1])  # type: ignore[index]
    decisions = int(re.search(r"Decision \d+ of (\d+)", text)[1])  # type: ignore[index]
    # Without any, with all, half the passes three times at most, halves, and one by itself.
    assert compiles <= 2 + 3 + decisions.bit_length() + 2


def test_a_clone_that_does_not_verify_is_found(
    straight: Path, command: Command, spoil_clones: SpoilClones
) -> None:
    def of_another_type(value: ir.Value) -> ir.Value:
        type_ = ir.RankedTensorType(value.type)
        half = ir.RankedTensorType.get(type_.shape, ir.BF16Type.get())
        return stablehlo.ConvertOp(half, value).result

    spoil_clones("stablehlo.tanh", of_another_type)
    status, text = command("bisect", straight).both
    assert status == 1, text
    assert "It is 'remat'" in text
    assert re.search(r"Decision \d+ of \d+: \S*/tanh", text), text


def attending_step(w: jax.Array, x: jax.Array) -> Any:
    """A gradient of three layers of attention."""

    def loss(w: jax.Array) -> jax.Array:
        y = x
        for layer in w:
            y = jnp.sin(y + jax.nn.softmax(y @ layer @ y.T) @ y)
        return (y**2).mean()

    return jax.value_and_grad(loss)(w)


def test_a_wrong_layer_of_attention_is_found(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    w, x = straight_arguments()
    spec = "attention{kernel=emulated min_keys=1}"
    found = execution(attending_step, (w / 4, x[:16]), spec=spec)
    dump = write_step(capture(tmp_path, [found])).parent
    assert command("bisect", dump).status == 0
    right = write._Writer._attention

    def wrong(self: Any, queries: ir.Value, *operands: Any) -> Any:
        is_second = self.attention.id == "attention-1"
        return right(self, negated(queries) if is_second else queries, *operands)

    monkeypatch.setattr(write._Writer, "_attention", wrong)
    status, text = command("bisect", dump).both
    assert status == 1, text
    assert "Decision 2 of 3: attention, mask none, in a fused kernel, " in text, text


def test_a_decision_that_raises_the_peak_is_found(
    scanned: Path, command: Command, spoil_clones: SpoilClones
) -> None:
    status, text = command("bisect", scanned, "--peak").both
    assert status == 0, text
    assert "No pass raises the temporary memory by more than 1 %." in text
    spoil_clones("stablehlo.sine", sorted_of_many)
    status, text = command("bisect", scanned, "--peak").both
    assert status == 1, text
    assert re.search(r"It is 'remat': [\d.]+ MiB", text), text
    assert re.search(r"Decision \d+ of \d+: \S*/sin \(", text), text
    status, again = repeated(command, text)
    assert status == 1, again


def test_a_decision_by_an_unknown_name(scanned: Path, command: Command) -> None:
    status, text = command("bisect", scanned, "--decision", "05-remat/scan-0/pair-0/clone-999").both
    assert status == 1
    assert "--decision 05-remat/scan-0/pair-0/clone-999: 'remat' has " in text
    assert "none of that name. Did you mean" in text


def test_results_for_a_target_that_is_not_here(scanned: Path, command: Command) -> None:
    status, text = command("bisect", scanned, "--target", "h100_sxm").both
    assert status == 1
    assert "there are no results to compare: add --peak" in text


def test_a_module_without_passes(tmp_path: Path, command: Command) -> None:
    status, text = command("bisect", write_sample(tmp_path, spec="off")).both
    assert status == 1
    assert "no pass ran on this module, or the dump does not say which: name some" in text


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dump of a program whose plan followed from an attempt."""
    to = tmp_path_factory.mktemp("measured")

    def loss(ws: jax.Array, x: jax.Array) -> jax.Array:
        layer = lambda x, w: (jax.nn.gelu(jnp.sin(x @ w)) + x, None)  # noqa: E731
        return (jax.lax.scan(layer, x, ws)[0] ** 2).mean()

    arguments = straight_arguments()
    with hloom.dump(to=to, steps="1", arrays=True), hloom.step(1):
        options = {"hloom": "remat{budget=60% min_bytes=0}"}
        jax.jit(jax.value_and_grad(loss), compiler_options=options)(*arguments)
    flush()
    (module,) = (m for m in open_dump(to).modules if m.attempts)
    return module.folder


def test_a_measured_plan_is_made_again(measured: Path) -> None:
    dump = open_dump(measured).modules[0]
    assert len(dump.attempts) > 1
    assert not dump.attempts[0]["used"]
    program = ReplayProgram.load(dump)
    steps = replayed(Pipeline.parse(dump.spec), dump)
    runnable = program.compile(Pipeline(tuple(step.whole() for step in steps)))
    assert runnable.record.attempts == ()
    assert other_plans(runnable.record.runs, dump) == ()
    assert runnable.record.runs[-1].plan["record"] == dump.planned[-1].json["record"]
    assert steps[-1].decisions
    # Without the attempts it is another plan, and that is told.
    afresh = replayed(Pipeline.parse(dump.spec), dump, afresh=True)
    first = program.compile(Pipeline(tuple(step.whole() for step in afresh)))
    (other,) = other_plans(first.record.runs, dump)
    assert other.startswith("'remat' (")
    assert "estimate" in other


def test_attempts_that_are_not_there_are_missed(measured: Path, tmp_path: Path) -> None:
    dump = open_dump(measured).modules[0]
    copy = tmp_path / measured.name
    copy.mkdir()
    for file in measured.glob("*.*"):
        (copy / file.name).write_bytes(file.read_bytes())
    rows = json.loads((copy / "attempts.json").read_text())
    rows[0]["temp_bytes"] = None
    (copy / "attempts.json").write_text(json.dumps(rows))
    (module,) = open_dump(copy).modules
    with pytest.raises(ReplayError, match="has not all of attempt 1 of pass 'remat'"):
        replayed(Pipeline.parse(dump.spec), module)


@pytest.mark.parametrize("turn", [1, 2, 7, 15, 16])
def test_halving_finds_the_turn_in_few_tries(turn: int) -> None:
    tried: list[int] = []

    def is_bad(number: int) -> bool:
        tried.append(number)
        return number >= turn

    assert first_bad(16, is_bad) == turn
    assert len(tried) == 4
    assert not {0, 16} & set(tried)


def test_a_program_of_chance_blames_no_pass() -> None:
    class Chance:
        def __init__(self, program: Any) -> None:
            self.program = program

        def run(self, arguments: Any) -> list[Any]:
            return [np.random.default_rng().normal(size=8)]

    class OneResult:
        source = "00-input.mlir"

        class Result:
            name = "result"

        results = (Result(),)

    runnable: Runnable = Chance(OneResult())  # type: ignore[assignment]
    with pytest.raises(ReplayError, match="the program itself gives another result each time"):
        ResultsProbe(runnable, [], Tolerance())
