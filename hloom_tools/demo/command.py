"""`hloom demo` trains the same GPT twice, hloom off and on, and prints what changed."""

from __future__ import annotations

import argparse
import dataclasses
import platform
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

import hloom
from hloom import targets
from hloom.dumps.select.steps import Steps
from hloom.dumps.write import writer
from hloom.passes.remat import Remat
from hloom.show.terminal import PlainConsole
from hloom.targets import deviceless
from hloom_tools.demo import program, training
from hloom_tools.demo.program import ModelSizes, TrainStep
from hloom_tools.demo.training import CompiledStep, Training, compile_step, largest_difference
from hloom_tools.output import JSON_HELP, STANDARD_OUTPUT, write_json

TOLERANCE = 1e-4
"""The allowed relative difference of losses. Two float32 programs that add in another order differ
by 1e-7 in a step, and AdamW, which divides by the gradient's own size, lets that grow."""

_SIZES = {
    "layers": "blocks of the model",
    "width": "features of the residual stream",
    "heads": "attention heads",
    "batch": "sequences in a step",
    "sequence": "bytes in a sequence",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `hloom demo` to a parser."""
    defaults = ModelSizes()
    parser.description = (
        "Trains a small GPT on the source files of Python's standard library twice, hloom off "
        "and on, from the same seed, and compares losses, XLA's memory figures, and times."
    )
    # The recommended spec, `fit`, would not change a program that fits any machine.
    spec = "the passes, e.g. 'fit{budget=50%%}' (default: %(default)s)"
    parser.add_argument("--spec", default=Remat.name, help=spec)
    steps = "steps to train (default: %(default)s)"
    parser.add_argument("--steps", type=_positive, default=30, metavar="N", help=steps)
    seed = "of the first weights and of the text (default: %(default)s)"
    parser.add_argument("--seed", type=int, default=0, metavar="N", help=seed)
    parser.add_argument(
        "--target",
        choices=[name for name in targets.names() if name != "cpu"],
        help="also compile the step for this device, without one (needs jax[cuda13], or jax[tpu])",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("hloom-demo"),
        metavar="DIR",
        help="where the IR before and after each pass goes (default: %(default)s)",
    )
    parser.add_argument(
        "--dump-steps",
        metavar="STEPS",
        help="dump these steps of the training with hloom on, e.g. 3,7, in place of the IR alone",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help=JSON_HELP)
    sizes = parser.add_argument_group("sizes")
    for name, what in _SIZES.items():
        sizes.add_argument(
            f"--{name}",
            type=_positive,
            default=getattr(defaults, name),
            metavar="N",
            help=f"{what} (default: %(default)s)",
        )
    sizes.add_argument(
        "--dropout",
        type=float,
        default=defaults.dropout,
        metavar="SHARE",
        help="share of features dropped on each residual branch (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs the demo and returns its exit status.

    0 where the losses agree; 1 where they do not, where hloom fell back to the original program,
    or where the arguments are mistaken, which is reported on stderr.
    """
    try:
        with hloom.passes(arguments.spec):
            """A mistake in the spec is told here, before anything takes time."""
        if arguments.dump_steps is not None:
            _check_steps(arguments.dump_steps, arguments.steps)
        sizes = ModelSizes(
            **{f.name: getattr(arguments, f.name) for f in dataclasses.fields(ModelSizes)}
        )
        corpus = program.standard_library()
        batches = program.batches(
            corpus,
            steps=arguments.steps,
            batch=sizes.batch,
            sequence=sizes.sequence,
            seed=arguments.seed,
        )
    except (ValueError, OSError) as error:
        print(f"hloom demo: error: {error}", file=sys.stderr)
        return 1
    console = PlainConsole(stderr=arguments.json == STANDARD_OUTPUT)
    return _compare(console, arguments, sizes, corpus, batches)


def _compare(
    console: Console,
    arguments: argparse.Namespace,
    sizes: ModelSizes,
    corpus: program.Tokens,
    batches: program.Tokens,
) -> int:
    if arguments.target is not None:
        deviceless.prepare()
    # An executable from a cache has no compile time to show.
    jax.config.update("jax_enable_compilation_cache", False)
    backend = jax.default_backend()
    spec, out, steps = arguments.spec, arguments.out, arguments.dump_steps
    with console.status("building the model") as status:
        step = TrainStep(sizes, seed=arguments.seed)
        _introduce(console, sizes, corpus, step.state_bytes(), arguments.steps)
        off, on = _compile_both(step.lower(), spec, out, status.update, dump_steps=steps)

        def show(losses: Sequence[float]) -> None:
            status.update("training, loss " + " and ".join(f"{loss:.3f}" for loss in losses))

        before = _step_folders(out)
        with nullcontext() if steps is None else hloom.dump(to=out, steps=steps):
            trainings = training.train(
                (off, on),
                step.first_state,
                batches,
                after_step=show,
                dumped=None if steps is None else on,
            )
    largest = largest_difference(trainings[0].losses, trainings[1].losses)
    console.print(
        training.losses_table(*trainings, tolerance=TOLERANCE, largest=largest),
        training.memory_table(f"Memory of the step on {backend}, as XLA reports it", off, on),
        training.times_table(off, on, trainings),
        training.passes_table(on),
    )
    report: dict[str, Any] = {
        "jax": jax.__version__,
        "python": platform.python_version(),
        "backend": backend,
        "sizes": dataclasses.asdict(sizes),
        "steps": arguments.steps,
        "seed": arguments.seed,
        "tolerance": TOLERANCE,
        "largest_relative_difference": largest,
        "off": _numbers(off, trainings[0]),
        "on": _numbers(on, trainings[1]),
    }
    dumped: list[Path] | None = None
    if steps is not None:
        writer.flush()
        new = _step_folders(out) - before
        dumped = sorted(new, key=lambda folder: int(folder.name.split("-")[1]))
        report["dumped_steps"] = [str(folder) for folder in dumped]
    if arguments.target is not None:
        report[arguments.target] = _for_target(console, arguments, step)
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        write_json(arguments.json, report)
    _tell_where(console, on, dumped, arguments.json)
    return 0 if largest <= TOLERANCE and on.fell_back is None else 1


def _check_steps(chosen: str, steps: int) -> None:
    """Raises ValueError where a text names no step of a training of ``steps`` steps, counted from
    1."""
    if not any(n in Steps.parse(chosen, source="--dump-steps") for n in range(1, steps + 1)):
        raise ValueError(f"--dump-steps={chosen!r} is none of the training's steps, 1 to {steps}")


def _step_folders(to: Path) -> set[Path]:
    return set(to.glob("step-*"))


def _compile_both(
    lowered: Any,
    spec: str,
    dump_to: Path,
    tell: Callable[[str], None],
    *,
    dump_steps: str | None = None,
) -> tuple[CompiledStep, CompiledStep]:
    tell("compiling, hloom off")
    off = compile_step(lowered, "off", dump_to=dump_to)
    tell("compiling, hloom on")
    return off, compile_step(lowered, spec, dump_to=dump_to, dump_steps=dump_steps)


def _for_target(console: Console, arguments: argparse.Namespace, step: TrainStep) -> dict[str, Any]:
    """Compiles the step for a device that is only described, prints the figures and returns
    them."""
    target = arguments.target
    try:
        sharding = deviceless.placement(target)
    except deviceless.MissingCompilerError as error:
        console.print(f"Skipped: {error}", style="yellow")
        return {"skipped": str(error)}
    with console.status(f"lowering for {target}") as status:
        lowered = step.lower(sharding)
        off, on = _compile_both(lowered, arguments.spec, arguments.out / target, status.update)
    console.print(
        training.memory_table(f"The same step compiled for {target}", off, on),
        training.times_table(off, on),
    )
    return {"off": _numbers(off), "on": _numbers(on)}


def _numbers(compiled: CompiledStep, trained: Training | None = None) -> dict[str, Any]:
    runs = compiled.record.runs if compiled.record else ()
    numbers: dict[str, Any] = {
        "spec": compiled.spec,
        "memory": compiled.memory,
        "pass_s": compiled.pass_s,
        "compile_s": compiled.compile_s,
        "passes": [{"name": r.name, "summary": r.summary, "seconds": r.seconds} for r in runs],
        "fell_back": compiled.fell_back,
        "dump_dir": None if compiled.dump_dir is None else str(compiled.dump_dir),
    }
    if trained is not None:
        numbers |= dataclasses.asdict(trained) | {"median_step_s": trained.median_step_s}
    return numbers


def _introduce(
    console: Console, sizes: ModelSizes, corpus: program.Tokens, state_bytes: int, steps: int
) -> None:
    console.print(
        f"A GPT of {sizes.layers} layers in a scan, width {sizes.width}, {sizes.heads} heads, "
        f"float32; weights and AdamW state {state_bytes / training.MEBI_BYTES:.0f} MiB, donated.\n"
        f"Text: {len(corpus) / training.MEBI_BYTES:.0f} MiB of Python's standard library as bytes. "
        f"{steps} steps of {sizes.batch} x {sizes.sequence} bytes, twice from the same seed.\n"
        f"jax {jax.__version__} on {jax.devices()[0].device_kind}.",
        soft_wrap=True,
    )


def _tell_where(
    console: Console, on: CompiledStep, dumped: list[Path] | None, json_file: Path | None
) -> None:
    if on.fell_back is not None:
        console.print(f"hloom fell back to the original program: {on.fell_back}")
    if dumped is not None:
        for folder in dumped:
            console.print(f"Dumped: {folder}", soft_wrap=True)
        if dumped:
            console.print(f"Look at it with: hloom report {dumped[0]}", soft_wrap=True)
    elif on.dump_dir is None:
        console.print(f"'{on.spec}' changed nothing in the step: there is no IR to show.")
    else:
        console.print(f"The IR before and after each pass: {on.dump_dir}", soft_wrap=True)
    if json_file not in (None, STANDARD_OUTPUT):
        console.print(f"Every number above: {json_file}", soft_wrap=True)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"at least 1, got {number}")
    return number
