"""Part 2: what `capture` and `remat` do to a step's time and memory, beside `jax.checkpoint`.

Every program in every configuration is compiled and run once in a child of its own, which gives
memory (XLA's and the allocator's, whose peak never falls in a process) and the loss; then one child
times all configurations of a program in turns. JAX's compilation cache spares it the compiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.gpu.items import Item, Known, Settings, result_of

OFFLOAD = "offload_dot_with_no_batch_dims"

POLICIES = (
    "everything_saveable",
    "dots_saveable",
    "dots_with_no_batch_dims_saveable",
    OFFLOAD,
    "nothing_saveable",
)
"""Every member of `jax.checkpoint_policies` that needs no names."""

BETWEEN = 4
"""Budgets between the floor and what the program takes as it is, in steps of equal ratio; with the
floor they are five."""

Configuration = dict[str, Any]
"""label, spec, and as there are: policy, options (of XLA), budget_bytes."""

FLOOR = "remat, the floor"


def _spec(spec: str) -> Configuration:
    return {"label": spec, "spec": spec}


def _options(label: str, **options: str) -> Configuration:
    return {"label": label, "spec": "off", "options": options}


OFF: Configuration = {"label": "off", "spec": "off"}

GRAPHS = (
    _options("off, no graphs", xla_gpu_enable_command_buffer=""),
    _options("off, no annotator", xla_disable_hlo_passes="dynamic-slice-annotator"),
    _spec("capture"),
    _spec("capture{min_ops=1}"),
    _spec("capture{min_ops=20}"),
)
"""The second has no slices at a loop's counter of their own, as with `capture`: what that costs."""

MEMORY = (
    {"label": FLOOR, "spec": "remat{budget=1}"},
    _spec("remat"),
    _spec("remat,capture"),
    *({"label": policy, "spec": "off", "policy": policy} for policy in POLICIES),
)

PROGRAMS: dict[str, tuple[Configuration, ...]] = {
    "gpt_scanned": (OFF, *GRAPHS, *MEMORY),
    "perceptron": (OFF, *GRAPHS),
    "lstm": (OFF, *GRAPHS, *MEMORY),
    "gpt_unrolled": (OFF, GRAPHS[0], GRAPHS[2], *MEMORY),
    "llama": (OFF, GRAPHS[0], GRAPHS[2], *MEMORY),
    "mixture_of_experts": (OFF, GRAPHS[0], GRAPHS[2], *MEMORY),
    "resnet": (OFF, GRAPHS[0], GRAPHS[2], *MEMORY),
    "unet": (OFF, GRAPHS[0], GRAPHS[2], *MEMORY),
    "two_level_scan": (OFF, GRAPHS[0], GRAPHS[2], *MEMORY),
    "adam": (OFF, *GRAPHS),
}
"""What decides most comes first."""

_DRY: dict[str, tuple[Configuration, ...]] = {
    "perceptron": (OFF, GRAPHS[2]),
    "two_level_scan": (OFF, MEMORY[0], MEMORY[4]),
}

_TIMES_S = 25.0


def batches(known: Known, settings: Settings) -> Iterator[Sequence[Item]]:
    """Program by program: every configuration; budgets, which go by what these gave; the times."""
    if settings.dry_run:
        yield [
            Item(
                "build", "benchmarks.gpu.parts.steps:build", {"names": list(PROGRAMS)}, limit_s=240
            ),
            Item("compile for H100", "benchmarks.gpu.parts.steps:compile_for_h100", limit_s=240),
        ]
    for program, first in (_DRY if settings.dry_run else PROGRAMS).items():
        yield [_measure(program, each, settings) for each in first]
        more = list(_budgets(program, known, settings)) if MEMORY[0] in first else []
        yield [_measure(program, each, settings) for each in more]
        yield _times(program, [*first, *more], known, settings)


def name_of(program: str, configuration: Configuration) -> str:
    return f"step/{program}/{configuration['label']}"


def _measure(program: str, configuration: Configuration, settings: Settings) -> Item:
    arguments = {"program": program, "tiny": settings.dry_run, "configuration": configuration}
    return Item(
        name_of(program, configuration),
        "benchmarks.gpu.parts.steps:measure",
        arguments,
        limit_s=150,
        alone=False,
    )


def _budgets(program: str, known: Known, settings: Settings) -> Iterator[Configuration]:
    """Between the floor and the program as it is; none where one of these did not go well."""
    least = result_of(known, name_of(program, MEMORY[0]))
    most = result_of(known, name_of(program, OFF))
    if least is None or most is None:
        return
    ratio = most["step_bytes"] / least["step_bytes"]
    for step in [2] if settings.dry_run else range(1, BETWEEN + 1):
        budget_bytes = round(least["step_bytes"] * ratio ** (step / (BETWEEN + 1)))
        yield {
            # Not the bytes: they are other ones where only the plan changed.
            "label": f"remat, budget {step} of {BETWEEN + 1}",
            "spec": f"remat{{budget={budget_bytes}}}",
            "budget_bytes": budget_bytes,
        }


def _times(
    program: str, configurations: Sequence[Configuration], known: Known, settings: Settings
) -> list[Item]:
    """The item that times what ran."""
    ran = [each for each in configurations if result_of(known, name_of(program, each)) is not None]
    if not ran:
        return []
    arguments = {
        "program": program,
        "tiny": settings.dry_run,
        "configurations": ran,
        "for_s": 1.0 if settings.dry_run else _TIMES_S,
    }
    return [
        Item(
            f"time/{program}",
            "benchmarks.gpu.parts.steps:time_in_turns",
            arguments,
            limit_s=240,
            needs_s=60,
        )
    ]
