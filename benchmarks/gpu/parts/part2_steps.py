"""Part 2: a step's time and memory under `fit` and `capture`, beside those of `jax.checkpoint`.

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

MATCHED = ("dots_saveable", "dots_with_no_batch_dims_saveable", "nothing_saveable")
"""Policies that `fit` is given the memory of: those that recompute, and leave the host alone."""

Configuration = dict[str, Any]
"""label, spec, and as there are: policy, options (of XLA), budget_bytes."""


def _spec(spec: str) -> Configuration:
    return {"label": spec, "spec": spec}


def _options(label: str, **options: str) -> Configuration:
    return {"label": label, "spec": "off", "options": options}


def _policy(policy: str) -> Configuration:
    return {"label": policy, "spec": "off", "policy": policy}


OFF: Configuration = {"label": "off", "spec": "off"}

FLOOR: Configuration = {"label": "fit, the floor", "spec": "fit{budget=min}"}

GRAPHS = (
    _options("off, no graphs", xla_gpu_enable_command_buffer=""),
    _options("off, no annotator", xla_disable_hlo_passes="dynamic-slice-annotator"),
    _spec("capture"),
    _spec("capture{min_ops=1}"),
    _spec("capture{min_ops=20}"),
)
"""The second has no slices at a loop's counter of their own, as with `capture`: what that costs."""

_CAPTURE = (GRAPHS[0], GRAPHS[2])

_CAPTURE_LOOPS = (*GRAPHS[:3], _spec("capture{loops=on}"), _spec("capture{loops=off}"))

MEMORY = (_spec("fit"), _spec("remat"), FLOOR, *map(_policy, POLICIES))

GROUPS: tuple[dict[str, tuple[Configuration, ...]], ...] = (
    {
        "gpt_scanned": (OFF, *_CAPTURE_LOOPS, *MEMORY, _spec("accumulate{microbatches=4}")),
        "gpt_131072": (OFF, GRAPHS[2], *MEMORY, _spec("chunk")),
        "llama": (OFF, *_CAPTURE_LOOPS, *MEMORY),
    },
    {
        "mixture_of_experts": (OFF, *_CAPTURE_LOOPS, *MEMORY),
        "lstm": (OFF, *_CAPTURE_LOOPS, *GRAPHS[3:], *MEMORY),
        "two_level_scan": (OFF, *_CAPTURE_LOOPS, *MEMORY),
    },
    {
        "gpt_unrolled": (OFF, *_CAPTURE, *MEMORY),
        "perceptron": (OFF, *GRAPHS),
        "adam": (OFF, *GRAPHS),
    },
    {
        "resnet": (OFF, *_CAPTURE, *MEMORY),
        "unet": (OFF, *_CAPTURE, *MEMORY),
        "llama_128256": (OFF, *MEMORY, _spec("chunk")),
    },
)
"""What decides most comes first. The programs of a group are compiled together."""

PROGRAMS = {name: each for group in GROUPS for name, each in group.items()}

_DRY: tuple[dict[str, tuple[Configuration, ...]], ...] = (
    {
        "perceptron": (OFF, GRAPHS[2]),
        "two_level_scan": (OFF, FLOOR, _policy("nothing_saveable")),
    },
)

_TIMES_S = 15.0


def batches(known: Known, settings: Settings) -> Iterator[Sequence[Item]]:
    """Group by group: every configuration; budgets, which go by what these gave; the times."""
    if settings.dry_run:
        yield [
            Item(
                "build", "benchmarks.gpu.parts.steps:build", {"names": list(PROGRAMS)}, limit_s=240
            ),
            Item("compile for H100", "benchmarks.gpu.parts.steps:compile_for_h100", limit_s=240),
        ]
    for group in _DRY if settings.dry_run else GROUPS:
        yield [measured(name, each, settings) for name, first in group.items() for each in first]
        more = {name: list(_budgets(name, known)) for name in group}
        yield [measured(name, each, settings) for name in group for each in more[name]]
        for name, first in group.items():
            yield timed(name, [*first, *more[name]], known, settings)


def name_of(program: str, configuration: Configuration) -> str:
    return f"step/{program}/{configuration['label']}"


def measured(program: str, configuration: Configuration, settings: Settings) -> Item:
    """The item that compiles a configuration and runs it once."""
    arguments = {"program": program, "tiny": settings.dry_run, "configuration": configuration}
    return Item(
        name_of(program, configuration),
        "benchmarks.gpu.parts.steps:measure",
        arguments,
        limit_s=150,
        alone=False,
    )


def matched(policy: str) -> str:
    """The label of `fit` with as much memory as a policy takes."""
    return f"fit, as {policy}"


def _budgets(program: str, known: Known) -> Iterator[Configuration]:
    """`fit` with the memory of each policy that ran."""
    for policy in MATCHED:
        found = result_of(known, name_of(program, _policy(policy)))
        if found is None:
            continue
        # The label has not the bytes: they are other ones where only XLA's plan changed.
        yield {
            "label": matched(policy),
            "spec": f"fit{{budget={found['step_bytes']}}}",
            "budget_bytes": found["step_bytes"],
        }


def timed(
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
