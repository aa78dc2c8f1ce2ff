"""What `remat` tells people where a budget is missed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.extend.mlir import ir
from support.modules import module_after

from hloom._jax.modules import make_context
from hloom.passes.analysis.device import DeviceView
from hloom.passes.analysis.loops.carries import loop_stacks
from hloom.passes.analysis.memory_model import peak_text
from hloom.passes.analysis.memory_model.peak_text import describe_peak
from hloom.passes.analysis.memory_model.profile import LiveBuffer, MemoryProfile, Point
from hloom.passes.analysis.memory_model.targets import memory_rules
from hloom.passes.budgeted import describe_floor
from hloom.passes.framework.feedback import Attempt, Complaint
from hloom.passes.framework.options import Budget
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir.names import SourceLine
from hloom.passes.planner.candidates import Candidate
from hloom.passes.planner.record import Estimate, RematObstacle, RematRecord, reason_of
from hloom.passes.remat import Remat
from hloom_tools.opt.job import dry_run

MIB = 2**20


def test_a_floor_says_what_was_reached() -> None:
    assert describe_floor(None, 12 * MIB, MIB) == (
        "the memory of the step cannot be held to 1.00 MiB; the least that was reached is 12.0 MiB."
    )
    assert describe_floor(37.5, 12 * MIB, MIB) == (
        "temporary memory cannot be held to 1.00 MiB, 37.5 % of what the program takes without the "
        "pass; the least that was reached is 12.0 MiB."
    )


def test_a_floor_just_above_the_budget_says_by_how_much() -> None:
    assert describe_floor(None, MIB + 1, MIB).endswith("that was reached is 1.00 MiB, 1 byte more.")


def spec(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "float32")


def lowered(function: object, *arguments: object) -> ir.Module:
    return module_after(jax.jit(function).lower(*arguments), "inline")


def chain(kernels: list[jax.Array], x: jax.Array) -> jax.Array:
    for kernel in kernels:
        x = jnp.tanh(x @ kernel)
    return x.sum()


def scanned(kernels: jax.Array, x: jax.Array) -> jax.Array:
    def layer(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, None]:
        return jnp.tanh(x @ kernel), None

    return jax.lax.scan(layer, x, kernels)[0].sum()


def residual(kernels: list[jax.Array], x: jax.Array) -> jax.Array:
    for kernel in kernels:
        h = x @ kernel
        x = x + jnp.sin(jnp.tanh(h)) * h
    return (x**2).sum()


def peak_kib(text: str) -> float:
    found = re.search(r"At the peak, ([\d.]+) ([KM])iB", text)
    return float(found[1]) * (1024 if found[2] == "M" else 1)


def shares(text: str) -> list[int]:
    return [int(each) for each in re.findall(r"\((\d+) %\)", text)]


def assert_shares_are_all(text: str) -> None:
    """Each share is rounded by half of a percent at most."""
    assert abs(sum(shares(text)) - 100) <= len(shares(text)) / 2, text


def test_equal_values_are_one_entry_with_their_number() -> None:
    module = lowered(jax.grad(chain), [spec(64, 64)] * 6, spec(256, 64))
    text = describe_peak(module, Target())
    assert text.count("f32[256,64]") == 1
    # One line of the program makes them all: the six that are kept, and a gradient.
    found = r"most of it:\n    \S+ KiB \(\d+ %\) in [67] x f32\[256,64\] of tanh, "
    assert re.search(found, text)
    assert "test_complaint.py:" in text
    assert_shares_are_all(text)


def test_what_a_loop_stacks_is_told_by_what_its_body_makes() -> None:
    text = describe_peak(lowered(jax.grad(scanned), spec(6, 64, 64), spec(256, 64)), Target())
    # The layers' inputs are among them: each is what the layer before has made on that line.
    line = scanned.__code__.co_firstlineno + 2
    found = rf"in (\d x )?f32\[6,256,64\] of (add|mul|sub), stacked over 6 iterations, \S+:{line}"
    assert re.search(found, text), text
    assert " in a loop, " in text
    assert_shares_are_all(text)


def test_arguments_are_told_by_what_they_are() -> None:
    def step(state: dict[str, list[jax.Array]], x: jax.Array) -> jax.Array:
        return jax.grad(chain)(state["params"], x)[0] + state["mu"][0]

    kernels = [spec(64, 64)] * 3
    module = lowered(step, {"params": kernels, "mu": kernels}, spec(64, 64))
    # JAX drops what the program does not read.
    told = "The arguments take 80.0 KiB: state['params'] 48.0 KiB, state['mu'] 16.0 KiB"
    assert told in describe_peak(module, Target(), arguments=True)
    assert "arguments" not in describe_peak(module, Target())


def test_where_xla_takes_other_memory_than_the_model_the_text_says_which_is_right() -> None:
    module = lowered(jax.grad(chain), [spec(64, 64)] * 6, spec(256, 64))
    plain = describe_peak(module, Target())
    first = describe_peak(module, Target(), xla_bytes=3 * MIB).splitlines()[0]
    assert " KiB by hloom's model (XLA's figure for it, 3.00 MiB, is right), most of it:" in first
    right_bytes = round(peak_kib(plain) * 1024)
    assert describe_peak(module, Target(), xla_bytes=right_bytes) == plain


def test_a_budget_missed_by_what_xla_made_is_told_with_xlas_figure() -> None:
    module = lowered(jax.grad(chain), [spec(64, 64)] * 6, spec(256, 64))
    compiled = [Attempt(RematRecord(), 5 * MIB, 3 * MIB)]
    said = Remat(budget=Budget(size_bytes=MIB)).complaint(
        compiled, 0, Target(), lambda: module, lambda: module
    )
    assert "(XLA's figure for it, 3.00 MiB, is right)" in said.text


def test_most_is_said_only_of_most() -> None:
    def many(x: jax.Array) -> jax.Array:
        # Twenty values of different types at once: no four of them are more than half.
        parts = [jnp.sort(x[: 64 + rows]) for rows in range(20)]
        return jnp.stack([part.sum() * part[0] for part in parts])

    text = describe_peak(lowered(many, spec(128)), Target())
    assert "the largest:\n" in text
    assert "most of it" not in text
    assert "in other values." in text
    assert sum(shares(text)[:-1]) <= 50
    assert sum(shares(text)) in range(95, 106)


def test_a_missed_budget_is_told_in_short_lines() -> None:
    """Short enough for a terminal, with the value, its bytes and its line, and the remedy last."""
    module = lowered(jax.grad(scanned), spec(6, 64, 64), spec(256, 64))
    said = dry_run(Pipeline.parse("remat{budget=1KiB}"), module, Target()).complaint
    floor, peak, *values, arguments, remedy = said.splitlines()
    assert floor.startswith("the memory of the step cannot be held to 1.00 KiB; ")
    assert peak.endswith(("most of it:", "the largest:"))
    assert values
    assert all(re.match(r"    (and )?[\d.]+ KiB \(\d+ %\) in \S", line) for line in values), values
    assert all(len(line) <= 95 for line in (peak, *values, arguments, remedy)), said
    assert arguments.startswith("  The arguments take ")
    assert remedy.startswith("  hloom.estimate, or `hloom budgets`")


def test_what_has_no_type_is_told_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    source = SourceLine("/home/me/train.py:6")
    copies = LiveBuffer("jit(f)/while (operands in another layout)", source, "", MIB, 0, 1, True)
    profile = MemoryProfile((Point(MIB, "jit(f)/while", source.line),), 0, (copies,), 0, 0, 0)
    monkeypatch.setattr(peak_text, "memory_profile", lambda *_, **__: profile)
    assert describe_peak(lowered(jnp.sin, spec(4)), Target()).endswith(
        ":\n    1.00 MiB (100 %) in while (operands in another layout) in a loop, train.py:6."
    )


def test_a_program_without_temporaries_has_no_peak_to_tell_of() -> None:
    assert describe_peak(lowered(jnp.sin, spec(4)), Target()) == ""


# Complaints.


def attempt(
    temp_bytes: int, obstacle: str | None = None, candidate: Candidate | None = None
) -> Attempt[RematRecord]:
    record = RematRecord(
        estimate=Estimate(candidate, temp_bytes, 0.0),
        obstacle=RematObstacle(obstacle) if obstacle else None,
    )
    return Attempt(record, temp_bytes, temp_bytes)


def complaint(
    step: Remat,
    *attempts: Attempt[RematRecord],
    function: Callable[..., Any] = jax.grad(lambda x: jnp.sin(x).sum()),  # noqa: B008
) -> Complaint | None:
    module = lowered(function, spec(4, 4))
    return step.complaint(
        attempts, step.best(attempts, Target()), Target(), lambda: module, lambda: module
    )


HALF = Remat(budget=Budget(percent=50))


@pytest.mark.parametrize(
    ("obstacle", "reason"),
    [
        ("no-barriers", "Nothing is recomputed: the CPU compiler of jaxlib 0.10 keeps no"),
        ("only-scans", "Its straight-line part is left as it is: the CPU compiler of jaxlib 0.10"),
        (
            "nothing-held",
            "Nothing is recomputed: nothing of min_bytes or more that may be computed",
        ),
        (None, "Nothing is recomputed: no recomputation that was tried lowers the peak."),
    ],
)
def test_a_missed_share_says_why(obstacle: str | None, reason: str) -> None:
    found = complaint(HALF, attempt(8 * MIB, obstacle))
    assert "held to 4.00 MiB, 50 % of what the program takes without the pass; " in found.text
    assert "the least that was reached is 8.00 MiB.\n  " + reason in found.text


def simulated(x: jax.Array, v: jax.Array) -> jax.Array:
    def step(u: jax.Array, _: None) -> tuple[jax.Array, None]:
        return u * u * v, None

    return jax.lax.scan(step, x, length=50)[0].sum()


def test_the_reason_is_that_of_what_stands_at_the_peak() -> None:
    """Where a scan's carry is most of it no compiler is at fault, nor an option."""
    module = lowered(jax.grad(simulated), spec(64, 64), spec(64, 64))
    reason = r"ost of the peak is the carry of the scan at test_complaint.py:\d+, 50 times"
    remedy = (
        "wo nested scans, 7 x 8, the outer body under jax.checkpoint, keep it 15 times; "
        "recursive-checkpoint writes such loops, or says why it does not"
    )
    for target in (Target(), replace(Target(), keeps_barriers=False)):
        found = dry_run(Pipeline.parse("remat{budget=1KiB}"), module, target).complaint
        assert found is not None
        assert re.search(rf"\n  M{reason}\.\n  T{remedy}\.\n", found), found
        assert "straight" not in found
        device = DeviceView.of(module, memory_rules(target))
        why = reason_of(
            RematObstacle.ONLY_SCANS, loop_stacks(module, device.bytes_of).at_peak(2**20)
        )
        assert re.fullmatch(f"m{reason}; t{remedy}", why), why


def test_what_is_made_of_a_smaller_carry_is_not_its_fault() -> None:
    def wide(x: jax.Array, w: jax.Array) -> jax.Array:
        def step(u: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
            return (jnp.sin(jnp.outer(u, u)) * w).sum(1), None

        return jax.lax.scan(step, x, w)[0].sum()

    module = lowered(jax.grad(wide), spec(64), spec(50, 64, 64))
    device = DeviceView.of(module, memory_rules(Target()))
    kept = loop_stacks(module, device.bytes_of).at_peak(2**20)
    assert (kept.in_loops, kept.carry) == (True, None)


def test_a_missed_share_that_was_worked_on_has_no_excuse() -> None:
    found = complaint(HALF, attempt(8 * MIB), attempt(5 * MIB, candidate=Candidate(0, 0)))
    assert "least that was reached is 5.00 MiB.\n  hloom.estimate, or `hloom budgets`" in found.text


def test_where_the_program_as_it_is_takes_least_it_says_so() -> None:
    found = complaint(HALF, attempt(8 * MIB), attempt(9 * MIB, candidate=Candidate(0, 0)))
    assert "least that was reached is 8.00 MiB.\n  Nothing is recomputed: no recomp" in found.text


def test_what_is_not_used_since_it_saves_too_little_says_so() -> None:
    dear = attempt(8 * MIB - 4096, "only-scans", Candidate(0, 0))
    dear = replace(dear, record=replace(dear.record, estimate=Estimate(Candidate(0, 0), 1, 1.0)))
    found = complaint(HALF, attempt(8 * MIB, "only-scans"), dear)
    assert "Nothing is recomputed: that saves less than a tenth of what was to be" in found.text
    cheap = replace(dear, record=replace(dear.record, estimate=Estimate(Candidate(0, 0), 1, 0.0)))
    found = complaint(HALF, attempt(8 * MIB), cheap)
    assert "Nothing is recomputed" not in found.text, "what costs no time is used"


@pytest.mark.parametrize(
    ("dear_bytes", "steps", "told"),
    [
        (
            6 * MIB,
            3.72,
            "That adds 372 % to the time of a step, by the roofline; the plan that is ",
        ),
        (6 * MIB, 0.4, ""),
        (4 * MIB + 2**17, 3.72, ""),  # next to the budget
        (4 * MIB + 4096, 3.72, None),  # a share is held to half a percent
        (4 * MIB, 3.72, None),  # holds
    ],
)
def test_a_budget_that_is_missed_anyway_costs_no_more_than_it_saves(
    dear_bytes: int, steps: float, told: str | None
) -> None:
    def planned(temp_bytes: int, steps: float) -> Attempt[RematRecord]:
        candidate = Candidate(0, 0) if steps else None
        estimate = Estimate(candidate, temp_bytes, steps * 1e-3)
        record = RematRecord(estimate=estimate, unmodified_bytes=8 * MIB, step_seconds=1e-3)
        return Attempt(record, temp_bytes, temp_bytes)

    tried = planned(8 * MIB, 0.0), planned(7 * MIB, 0.02), planned(dear_bytes, steps)
    found = complaint(HALF, *tried)
    assert HALF.best(tried, Target()) == (1 if told else 2)
    if told is None:
        assert found is None
        return
    assert ("by the roofline" in found.text) == bool(told)
    assert told in found.text
    if told:
        assert "that is used takes 7.00 MiB and adds 2 %." in found.text
    assert "Nothing is recomputed" not in found.text


def test_where_all_that_misses_is_dear_the_program_is_used_as_it_is() -> None:
    estimate = Estimate(Candidate(0, 0), 6 * MIB, 4.0)
    record = RematRecord(estimate=estimate, step_seconds=1.0)
    tried = attempt(8 * MIB), Attempt(record, 6 * MIB, 6 * MIB)
    found = complaint(HALF, *tried)
    assert HALF.best(tried, Target()) == 0
    assert "That adds 400 % to the time of a step, by the roofline; the program is used " in (
        found.text
    )
    assert "Nothing is recomputed" not in found.text


def test_a_share_needs_two_compiles() -> None:
    found = complaint(Remat(budget=Budget(percent=50), compiles=1), attempt(8 * MIB))
    assert "compiles=1 leaves no compile beyond that one" in found.text


def test_a_share_is_not_of_helper_programs() -> None:
    assert complaint(HALF, attempt(2, "helper")) is None


@pytest.mark.parametrize(
    ("function", "size", "is_helper"),
    [
        (jnp.sin, 64, True),
        (jnp.sin, 4096, True),
        (jax.grad(lambda x: jnp.sin(x).sum()), 64, False),
        (lambda x: x @ x, 64, False),
        (lambda x: jax.lax.scan(lambda y, _: (jnp.sin(y) * x, y), x, length=4), 64, True),
    ],
)
def test_helper_programs_have_neither_a_product_nor_a_backward_pass(
    function: Callable[..., Any], size: int, is_helper: bool
) -> None:
    module = lowered(lambda x: function(jnp.sort(x)), spec(size, size))
    with module.context, ir.Location.unknown():
        plan = Remat(budget=Budget(percent=50)).plan_after(module, Target(), ())
    assert (plan.record.obstacle is RematObstacle.HELPER) == is_helper


def test_a_share_is_missed_in_silence_without_a_backward_pass() -> None:
    """An evaluation; a module without any names, as exported ones are, may have one."""
    missed = attempt(MIB, "nothing-held")
    assert complaint(HALF, missed, function=lambda x: x @ x) is None
    assert complaint(Remat(budget=Budget(size_bytes=1)), missed, function=lambda x: x @ x)
    text = lowered(lambda x: x @ x, spec(4, 4)).operation.get_asm()
    nameless = ir.Module.parse(text, make_context())
    assert HALF.complaint([missed], 0, Target(), lambda: nameless, lambda: nameless) is not None


def test_of_programs_without_a_product_one_is_told_of() -> None:
    large = complaint(Remat(budget=Budget(size_bytes=1)), attempt(MIB, "nothing-held"))
    # Of many such programs in a process one is told of.
    assert large.topic == "no-product"
    product = complaint(
        HALF, attempt(MIB, "nothing-held"), function=jax.grad(lambda x: (x @ x).sum())
    )
    assert product.topic == ""


def test_a_backend_without_figures_cannot_be_held_to_a_budget() -> None:
    unread: Any = None
    found = Remat(budget=Budget(size_bytes=1)).complaint((), 0, Target(), unread, unread)
    assert "not known whether the budget holds" in found.text
    assert Remat().complaint((), 0, Target(), unread, unread) is None


def test_what_is_only_planned_is_not_said_to_be_compiled() -> None:
    module = lowered(jax.grad(residual), [spec(64, 64)] * 6, spec(256, 64))
    said = dry_run(Pipeline.parse("remat{budget=1KiB}"), module, Target()).complaint
    assert said.startswith("the memory of the step cannot be held to 1.00 KiB; ")
    assert "compiled" not in said
    # It is the peak of what is planned, not of the program as it is.
    before, after = (peak_kib(text) for text in (describe_peak(module, Target()), said))
    assert after < 0.8 * before


def test_after_some_obstacles_no_plan_can_follow() -> None:
    final = {each for each in RematObstacle if RematRecord(obstacle=each).is_final}
    assert final == {RematObstacle.HELPER, RematObstacle.NO_BARRIERS, RematObstacle.NOTHING_HELD}
    assert not RematRecord().is_final
    assert RematRecord(unplanned="it has no entry").is_final
