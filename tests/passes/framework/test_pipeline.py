"""The pipeline: order, requirements, preparation, verification, timing, failure."""

from __future__ import annotations

import gc

import jax
import jax.numpy as jnp
import pytest
from jax.extend.mlir import ir
from support import registering
from support import toy_passes as toy

from hloom.passes.framework import registry
from hloom.passes.framework.base import Pass, Plan
from hloom.passes.framework.errors import PassError, SpecError
from hloom.passes.framework.pipeline import Pipeline, gc_paused
from hloom.passes.framework.target import Target
from hloom.passes.ir.clone import clone_module

TARGET = Target()


_toys = registering(toy.ReplaceTwo, toy.Touch, toy.NeedsTouch, toy.NeedsBoth, toy.Fail)


def doubling_module() -> ir.Module:
    def double(x: jax.Array) -> jax.Array:
        return x * 2.0

    return jax.jit(double).lower(jnp.ones(3)).compiler_ir()


def text(module: ir.Module) -> str:
    return str(module.operation.get_asm(enable_debug_info=True))


def names(pipeline: Pipeline) -> list[str]:
    return [step.name for step in pipeline.steps()]


class Recorder:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, str]] = []
        self.texts: list[str] = []

    def before(self, index: int, step: Pass, module: ir.Module) -> None:
        self.calls.append(("before", index, step.name))
        self.texts.append(text(module))

    def after(self, index: int, step: Pass, plan: Plan, module: ir.Module) -> None:
        self.calls.append(("after", index, f"{step.name}: {plan.summary()}"))
        self.texts.append(text(module))


def test_a_pass_changes_the_module_in_place() -> None:
    module = doubling_module()
    result = Pipeline.parse("replace-two{by=5}").run(module, target=TARGET)
    assert "dense<5.0" in text(module)
    assert "dense<2.0" not in text(module)
    assert result.changed
    [run] = result.runs
    assert (run.name, run.summary, run.plan, run.empty) == (
        "replace-two",
        "1 operations",
        {"operations": 1},
        False,
    )


def test_every_phase_is_timed() -> None:
    result = Pipeline.parse("replace-two").run(doubling_module(), target=TARGET)
    [run] = result.runs
    assert min(run.plan_s, run.apply_s, run.verify_s) > 0
    assert run.seconds == run.plan_s + run.apply_s + run.verify_s
    assert result.seconds >= run.seconds


def test_an_empty_plan_is_not_applied() -> None:
    module = doubling_module()
    pipeline = Pipeline.parse("replace-two,replace-two")
    first, second = pipeline.run(module, target=TARGET).runs
    assert not first.empty
    assert second.empty
    assert second.apply_s == second.verify_s == 0.0


def test_the_empty_pipeline_does_nothing() -> None:
    module = doubling_module()
    before = text(module)
    result = Pipeline.parse("off").run(module, target=TARGET)
    assert (result.runs, result.changed, text(module)) == ((), False, before)


def test_requirements_run_first_and_once() -> None:
    assert names(Pipeline.parse("needs-touch")) == ["touch", "needs-touch"]
    assert names(Pipeline.parse("needs-touch,needs-touch")) == [
        "touch",
        "needs-touch",
        "needs-touch",
    ]
    assert names(Pipeline.parse("touch,needs-touch")) == ["touch", "needs-touch"]
    assert names(Pipeline.parse("needs-both")) == ["touch", "needs-touch", "needs-both"]


def test_a_requirement_that_was_given_with_options_is_not_run_again() -> None:
    steps = Pipeline.parse("needs-touch{by=7},needs-both").steps()
    assert [str(step) for step in steps] == ["touch", "needs-touch{by=7.0}", "needs-both"]


def test_requirements_are_no_part_of_the_spec() -> None:
    assert str(Pipeline.parse("needs-both")) == "needs-both"


def test_preparation_alone_is_no_change() -> None:
    module = doubling_module()
    result = Pipeline.parse("touch").run(module, target=TARGET)
    assert "touched" in text(module)
    assert not result.runs[0].empty
    assert not result.changed


def test_preparation_with_a_change_is_a_change() -> None:
    assert Pipeline.parse("needs-touch").run(doubling_module(), target=TARGET).changed


def test_observers_see_the_module_around_each_step() -> None:
    recorder = Recorder()
    module = doubling_module()
    original = text(module)
    Pipeline.parse("needs-touch").run(module, target=TARGET, observers=[recorder])
    assert recorder.calls == [
        ("before", 0, "touch"),
        ("after", 0, "touch: 1 operations"),
        ("before", 1, "needs-touch"),
        ("after", 1, "needs-touch: 1 operations"),
    ]
    assert recorder.texts[0] == original
    assert "touched" in recorder.texts[1]
    assert recorder.texts[1] == recorder.texts[2]
    assert recorder.texts[3] == text(module)


@pytest.mark.parametrize(
    ("phase", "reason"),
    [("plan", "LookupError: no plan for this"), ("apply", "LookupError: cannot apply")],
)
def test_a_failure_names_pass_phase_and_reason(phase: str, reason: str) -> None:
    with pytest.raises(PassError) as caught:
        Pipeline.parse(f"fail{{phase={phase}}}").run(doubling_module(), target=TARGET)
    error = caught.value
    assert (error.pass_name, error.phase, error.reason) == ("fail", phase, reason)
    assert str(error) == f"pass 'fail' failed in {phase}: {reason}"
    assert isinstance(error.__cause__, LookupError)


def test_a_module_that_does_not_verify_is_a_failure() -> None:
    with pytest.raises(PassError) as caught:
        Pipeline.parse("fail{phase=verify}").run(doubling_module(), target=TARGET)
    assert caught.value.phase == "verify"
    assert "stablehlo.constant" in caught.value.reason
    assert "\n" not in caught.value.reason


def test_an_observer_that_fails_is_a_failure_of_its_step() -> None:
    class Broken(Recorder):
        def after(self, index: int, step: Pass, plan: Plan, module: ir.Module) -> None:
            raise OSError("disk full")

    with pytest.raises(PassError, match="pass 'touch' failed in observe: OSError: disk full"):
        Pipeline.parse("touch").run(doubling_module(), target=TARGET, observers=[Broken()])


def test_a_clone_is_equal_and_apart() -> None:
    module = doubling_module()
    before = text(module)
    clone = clone_module(module)
    assert isinstance(clone, ir.Module)
    assert text(clone) == before
    Pipeline.parse("needs-touch").run(clone, target=TARGET)
    assert text(clone) != before
    assert text(module) == before


def test_a_clone_has_nothing_to_do_with_what_the_caller_builds() -> None:
    module = doubling_module()
    before = text(module)
    [block] = module.body.operations[0].regions[0].blocks
    # Nothing can be inserted here, behind the terminator: trying it would raise.
    with module.context, ir.Location.unknown(), ir.InsertionPoint(block):
        assert text(clone_module(module)) == before
    assert text(module) == before


def test_a_pass_made_with_a_bad_value_says_so() -> None:
    expected = "Toy: option 'limit' of pass 'toy' wants a whole number, from -5 to 100, got 101."
    with pytest.raises(SpecError) as caught:
        toy.Toy(limit=101)
    assert str(caught.value) == expected


def test_registered_adds_for_the_block_only() -> None:
    assert registry.lookup("toy") is None
    with registry.registered(toy.Toy):
        assert registry.lookup("toy") is toy.Toy
        assert toy.Toy in registry.all_passes()
    assert registry.lookup("toy") is None


def test_a_name_is_registered_once() -> None:
    with (
        pytest.raises(ValueError, match="passes named touch are registered already"),
        registry.registered(toy.Touch),
    ):
        pass


def test_the_table_is_sorted_and_agrees_with_the_classes() -> None:
    table = registry.all_passes()
    assert [cls.name for cls in table] == sorted(cls.name for cls in table)
    assert all(registry.lookup(cls.name) is cls for cls in table)
    for cls in table:
        camel_case = "".join(word.capitalize() for word in cls.name.split("-"))
        assert cls.__name__ == camel_case
        assert Pipeline.parse(cls.example).passes


@pytest.mark.parametrize(
    ("spec", "preparing"),
    [
        # A budget is held against the program that JAX gave, which no helper has touched.
        ("remat{budget=50%}", ["inline", "drop-constraints", "cse", "free-constants"]),
        ("fit", ["inline", "drop-constraints", "cse", "free-constants"]),
        ("uninitialized-stacks", ["inline", "drop-constraints", "cse", "free-constants"]),
        # Without one there is nothing to hold it against; and what is asked for counts.
        ("remat", ["inline", "drop-constraints", "cse"]),
        ("free-constants,remat{budget=50%}", ["inline", "drop-constraints", "cse"]),
        ("one-hot", ["inline", "drop-constraints"]),
    ],
)
def test_what_only_prepares(spec: str, preparing: list[str]) -> None:
    pipeline = Pipeline.parse(spec)
    assert [step.name for step in pipeline.steps() if pipeline.prepares(step, "cuda")] == preparing


def test_what_passes_leave_is_not_scanned_by_the_next_collection() -> None:
    scanned: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            scanned.append(len(gc.get_objects(generation=0)))

    gc.unfreeze()  # tests/conftest.py freezes what it imports
    gc.callbacks.append(note)
    try:
        with gc_paused():
            left: list[list[int]] = [[] for _ in range(2 * gc.get_threshold()[0])]
        gc.collect(0)
    finally:
        gc.callbacks.remove(note)
        gc.freeze()
    assert gc.isenabled()
    assert scanned
    assert max(scanned) < len(left)


def test_objects_that_a_program_has_frozen_stay_so() -> None:
    """As those that tests/conftest.py freezes."""
    count = gc.get_freeze_count()
    with gc_paused():
        pass
    assert gc.get_freeze_count() == count > 0
