"""`hloom demo`: trains the same GPT twice, hloom off and on, and prints what changed."""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import hloom
from hloom import targets
from hloom.targets import deviceless
from hloom.tools.demo import data, dumping, table
from hloom.tools.demo.model import Sizes
from hloom.tools.demo.train import (
    CompiledStep,
    Training,
    TrainStep,
    compile_step,
    largest_difference,
    train,
)

TOLERANCE = 1e-4
"""How far the losses may part, relative. Two float32 programs that add in another order differ by
1e-7 in a step, and AdamW, which divides by the gradient's own size, lets that grow."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `hloom demo` to a parser."""
    defaults = Sizes()
    parser.description = (
        "Trains a small GPT on the source files of Python's standard library twice, hloom off "
        "and on, from the same seed, and compares losses, XLA's memory figures, and times."
    )
    parser.add_argument(
        "--spec",
        # What is recommended, `fit`, would leave a program as it is that fits any machine.
        default="remat",
        help="the passes, e.g. 'fit{budget=50%%}' (default: %(default)s)",
    )
    parser.add_argument(
        "--steps",
        type=_positive,
        default=30,
        metavar="N",
        help="steps to train (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="of the first weights and of the text (default: %(default)s)",
    )
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
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number here")
    sizes = parser.add_argument_group("sizes")
    for name, what in (
        ("layers", "blocks of the model"),
        ("width", "features of the residual stream"),
        ("heads", "attention heads"),
        ("batch", "sequences in a step"),
        ("sequence", "bytes in a sequence"),
    ):
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
    """Runs the demo and gives its exit status.

    0 where the losses agree; 1 where they do not, where hloom fell back to the original program,
    or where the arguments are mistaken, which stderr tells.
    """
    try:
        with hloom.passes(arguments.spec):
            """A mistake in the spec is told here, before anything takes time."""
        if arguments.dump_steps is not None:
            dumping.check_steps(arguments.dump_steps, arguments.steps)
        sizes = Sizes(**{f.name: getattr(arguments, f.name) for f in dataclasses.fields(Sizes)})
        corpus = data.standard_library()
        batches = data.batches(
            corpus,
            steps=arguments.steps,
            batch=sizes.batch,
            sequence=sizes.sequence,
            seed=arguments.seed,
        )
    except (ValueError, OSError) as error:
        print(f"hloom demo: error: {error}", file=sys.stderr)
        return 1
    return _compare(Console(), arguments, sizes, corpus, batches)


def _compare(
    console: Console,
    arguments: argparse.Namespace,
    sizes: Sizes,
    corpus: data.Tokens,
    batches: data.Tokens,
) -> int:
    if arguments.target is not None:
        deviceless.prepare()
    # A compile that comes out of a cache has no compile time to show.
    jax.config.update("jax_enable_compilation_cache", False)
    with _progress(console, total=arguments.steps + 3) as advance:
        advance("building the model")
        step = TrainStep(sizes, seed=arguments.seed)
        console.print(
            _introduction(sizes, corpus, step.state_bytes(), arguments.steps), soft_wrap=True
        )
        lowered = step.lower()
        off, on = programs = _compile_both(
            lowered, arguments.spec, arguments.out, advance, dump_steps=arguments.dump_steps
        )

        def show(losses: Sequence[float]) -> None:
            advance("training, loss " + " and ".join(f"{loss:.3f}" for loss in losses))

        with _dumping(arguments) as dumped:
            trainings = train(
                programs,
                step.first_state,
                batches,
                after_step=show,
                dumped=None if dumped is None else on,
            )
    largest = largest_difference(trainings[0].losses, trainings[1].losses)
    backend = jax.default_backend()
    console.print(
        table.losses(*trainings, tolerance=TOLERANCE, largest=largest),
        table.memory(f"Memory of the step on {backend}, as XLA reports it", off.memory, on.memory),
        table.times(off, on, trainings),
        table.passes(on),
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
    if dumped is not None:
        report["dumped_steps"] = [str(folder) for folder in dumped]
    if arguments.target is not None:
        report[arguments.target] = _for_target(console, arguments, step)
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    _tell_where(console, on, dumped, arguments.json)
    return 0 if largest <= TOLERANCE and on.fell_back is None else 1


def _dumping(arguments: argparse.Namespace) -> AbstractContextManager[list[Path] | None]:
    if arguments.dump_steps is None:
        return nullcontext()
    return dumping.dumping(arguments.out, arguments.dump_steps)


def _compile_both(
    lowered: Any,
    spec: str,
    dump_to: Path,
    advance: Callable[[str], None],
    *,
    dump_steps: str | None = None,
) -> tuple[CompiledStep, CompiledStep]:
    advance("compiling, hloom off")
    off = compile_step(lowered, "off", dump_to=dump_to)
    advance("compiling, hloom on")
    return off, compile_step(lowered, spec, dump_to=dump_to, dump_steps=dump_steps)


def _for_target(console: Console, arguments: argparse.Namespace, step: TrainStep) -> dict[str, Any]:
    """Compiles the step for a device without one, prints the figures and gives them."""
    try:
        sharding = deviceless.placement(arguments.target)
    except deviceless.MissingCompilerError as error:
        console.print(f"Skipped: {error}", style="yellow", markup=False)
        return {"skipped": str(error)}
    with _progress(console, total=3) as advance:
        advance(f"lowering for {arguments.target}")
        lowered = step.lower(sharding)
        off, on = _compile_both(lowered, arguments.spec, arguments.out / arguments.target, advance)
    console.print(
        table.memory(f"The same step compiled for {arguments.target}", off.memory, on.memory),
        table.times(off, on, None),
    )
    return {"off": _numbers(off, None), "on": _numbers(on, None)}


def _numbers(compiled: CompiledStep, training: Training | None) -> dict[str, Any]:
    numbers: dict[str, Any] = {
        "spec": compiled.spec,
        "memory": dataclasses.asdict(compiled.memory),
        "pass_s": compiled.pass_s,
        "compile_s": compiled.compile_s,
        "passes": [dataclasses.asdict(run) for run in compiled.runs],
        "fell_back": compiled.fell_back,
        "dump_dir": None if compiled.dump_dir is None else str(compiled.dump_dir),
    }
    if training is not None:
        numbers["losses"] = training.losses
        numbers["step_s"] = training.step_s
        numbers["median_step_s"] = table.median_step_s(training)
    return numbers


def _introduction(sizes: Sizes, corpus: data.Tokens, state_bytes: int, steps: int) -> str:
    return (
        f"A GPT of {sizes.layers} layers in a scan, width {sizes.width}, {sizes.heads} heads, "
        f"float32; weights and AdamW state {state_bytes / table.MEBI_BYTES:.0f} MiB, donated.\n"
        f"Text: {len(corpus) / table.MEBI_BYTES:.0f} MiB of Python's standard library as bytes. "
        f"{steps} steps of {sizes.batch} x {sizes.sequence} bytes, twice from the same seed.\n"
        f"jax {jax.__version__} on {jax.devices()[0].device_kind}."
    )


def _tell_where(
    console: Console, on: CompiledStep, dumped: list[Path] | None, json_file: Path | None
) -> None:
    if on.fell_back is not None:
        console.print(f"hloom fell back to the original program: {on.fell_back}", markup=False)
    if dumped is not None:
        for folder in dumped:
            console.print(f"Dumped: {folder}", soft_wrap=True)
        if dumped:
            console.print(f"Look at it with: hloom report {dumped[0]}", soft_wrap=True)
    elif on.dump_dir is None:
        console.print(f"'{on.spec}' changed nothing in the step: there is no IR to show.")
    else:
        console.print(f"The IR before and after each pass: {on.dump_dir}", soft_wrap=True)
    if json_file is not None:
        console.print(f"Every number above: {json_file}", soft_wrap=True)


@contextmanager
def _progress(console: Console, *, total: int) -> Iterator[Callable[[str], None]]:
    """Gives a function that says what is done next and moves the bar by one."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        # A log wants the results, not a picture of the waiting.
        disable=not console.is_terminal,
    )
    with bar:
        task = bar.add_task("starting", total=total)

        def advance(what: str) -> None:
            bar.update(task, description=what, advance=1)

        yield advance


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"at least 1, got {number}")
    return number
