"""`hloom demo` trains the GPT of `examples/gpt_train.py` twice, hloom off and on, and compares."""

from __future__ import annotations

import argparse
import dataclasses
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jax

import hloom
from hloom.dumps.select.steps import Steps
from hloom.dumps.write import writer
from hloom.passes.framework.tables import Kind
from hloom.passes.framework.text import seconds, size
from hloom.passes.remat import Remat
from hloom.show.terminal import PlainConsole
from hloom.targets import deviceless
from hloom_tools.complaint import complain
from hloom_tools.demo import program
from hloom_tools.demo.program import ModelSizes, TrainStep
from hloom_tools.document.content import Document, Note, Section, table_of
from hloom_tools.document.terminal import show
from hloom_tools.output import STANDARD_OUTPUT, add_json, write_json
from hloom_tools.target_option import add_target

TOLERANCE = 1e-4
"""The allowed relative difference of losses. Two float32 programs that add in another order differ
by 1e-7 in a step, and AdamW, which divides by the gradient's own size, lets that grow."""

Numbers = dict[str, Any]

_SIZES = {
    "layers": "blocks of the model",
    "width": "features of the residual stream",
    "heads": "attention heads",
    "batch": "sequences in a step",
    "sequence": "bytes in a sequence",
    "dropout": "share of features dropped on each residual branch",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `hloom demo` to a parser."""
    parser.description = (
        "Trains a small GPT on the source files of Python's standard library twice, hloom off "
        "and on, from the same seed, and compares losses, XLA's memory figures, and times."
    )
    add, default = parser.add_argument, " (default: %(default)s)"
    # The recommended spec, `fit`, would not change a program that fits any machine.
    what = f"the passes, e.g. 'fit{{budget=50%%}}'{default}"
    add("-p", "--passes", "--spec", dest="spec", default=Remat.name, metavar="SPEC", help=what)
    add("--steps", type=_positive, default=30, metavar="N", help=f"steps to train{default}")
    add("--seed", type=int, default=0, metavar="N", help=f"of first weights and text{default}")
    what = "also compile the step for this device, without one (needs jax[cuda13], or jax[tpu])"
    add_target(parser, what, others=False)
    where = f"where the IR before and after each pass goes{default}"
    add("-o", "--out", type=Path, default=Path("hloom-demo"), metavar="DIR", help=where)
    dumped = "dump these steps of the training with hloom on, e.g. 3,7, in place of the IR alone"
    add("--dump-steps", metavar="STEPS", help=dumped)
    add_json(parser)
    for name, what in _SIZES.items():
        given = getattr(ModelSizes, name)
        kind = float if name == "dropout" else _positive
        add(f"--{name}", type=kind, default=given, metavar="N", help=f"{what}{default}")


def run(arguments: argparse.Namespace) -> int:
    """Runs the demo and returns its exit status.

    0 where the losses agree; 1 where they do not, where hloom fell back to the original program,
    or where the arguments are mistaken, which is reported on stderr.
    """
    try:
        with hloom.passes(arguments.spec):
            pass  # A mistake in the spec ends the command here, before anything takes time.
        chosen, steps = arguments.dump_steps, arguments.steps
        if chosen is not None:
            wanted = Steps.parse(chosen, source="--dump-steps")
            if not any(number in wanted for number in range(1, steps + 1)):
                raise ValueError(
                    f"--dump-steps={chosen!r} is none of the training's steps, 1 to {steps}"
                )
        sizes = ModelSizes(**{name: getattr(arguments, name) for name in _SIZES})
        shape = {"steps": steps, "batch": sizes.batch, "sequence": sizes.sequence}
        text = program.standard_library()
        batches = program.batches(text, **shape, seed=arguments.seed)
    except (ValueError, OSError) as error:
        return complain("hloom demo", error)
    return _compare(arguments, sizes, text, batches)


def _compare(
    arguments: argparse.Namespace, sizes: ModelSizes, text: program.Tokens, batches: program.Tokens
) -> int:
    chosen, steps = arguments.dump_steps, arguments.steps
    console = PlainConsole(stderr=arguments.json == STANDARD_OUTPUT)
    if arguments.target is not None:
        deviceless.prepare()
    # An executable from a cache has no compile time to show.
    jax.config.update("jax_enable_compilation_cache", False)
    step, out = TrainStep(sizes, seed=arguments.seed), arguments.out
    mebi_bytes = step.state_bytes() / 2**20
    console.print(
        f"A GPT of {sizes.layers} layers in a scan, width {sizes.width}, {sizes.heads} heads, "
        f"float32; weights and AdamW state {mebi_bytes:.0f} MiB, donated.\n"
        f"Text: {len(text) / 2**20:.0f} MiB of Python's standard library as bytes. "
        f"{steps} steps of {sizes.batch} x {sizes.sequence} bytes, twice from the same seed.\n"
        f"jax {jax.__version__} on {jax.devices()[0].device_kind}."
    )
    with console.status("compiling") as status:
        lowered, was_there = step.lower(), set(out.glob("step-*"))
        off = compile_step(lowered, "off", dump_to=out)
        on = compile_step(lowered, arguments.spec, dump_to=out, dump_steps=chosen)
        with nullcontext() if chosen is None else hloom.dump(to=out, steps=chosen):
            dumped = None if chosen is None else on
            train((off, on), step.first_state, batches, status.update, dumped)
    one, two = off.numbers, on.numbers
    largest = largest_difference(one["losses"], two["losses"])
    told: Numbers = {
        "jax": jax.__version__,
        "python": platform.python_version(),
        "backend": jax.default_backend(),
        "sizes": dataclasses.asdict(sizes),
        "steps": steps,
        "seed": arguments.seed,
        "tolerance": TOLERANCE,
        "largest_relative_difference": largest,
        "off": one,
        "on": two,
    }
    title = f"The step on {told['backend']}, memory as XLA reports it"
    sections = [_losses(one, two, largest), _compared(title, one, two)]
    if arguments.target is not None:
        told[arguments.target], section = _for_target(console, arguments, step)
        sections.append(section)
    notes = []
    if chosen is not None:
        writer.flush()
        new = sorted(set(out.glob("step-*")) - was_there, key=lambda each: int(each.name[5:]))
        told["dumped_steps"] = list(map(str, new))
        notes += [Note("Dumped", code=folder) for folder in told["dumped_steps"]]
        notes += [Note("Look at it with", code=f"hloom show {folder}") for folder in new[:1]]
    elif two["dump_dir"] is None:
        nothing = f"'{arguments.spec}' changed nothing in the step: there is no IR to show."
        notes.append(Note(nothing))
    else:
        notes.append(Note("The IR before and after each pass", code=two["dump_dir"]))
    if (fell_back := two["fell_back"]) is not None:
        notes.insert(0, Note(f"hloom fell back to the original program: {fell_back}"))
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        write_json(arguments.json, told)
        if arguments.json != STANDARD_OUTPUT:
            notes.append(Note("Every number above", code=str(arguments.json)))
    show(Document("", (*sections, Section("", notes=tuple(notes)))), console)
    return int(largest > TOLERANCE or fell_back is not None)


@dataclasses.dataclass(frozen=True)
class CompiledStep:
    """A compiled training step, `(state, batch) -> (state, loss)`, and its figures."""

    step: Callable[[Any, Any], tuple[Any, jax.Array]]
    numbers: Numbers


def compile_step(
    lowered: Any, spec: str, *, dump_to: Path, dump_steps: str | None = None
) -> CompiledStep:
    """Compiles a lowered step with a spec, writing the IR of each pass under `dump_to`; with
    `dump_steps` it is written with those steps, when they have run."""
    before = hloom.records()[-1:]
    start_s = time.perf_counter()
    with hloom.dump(to=dump_to, steps=dump_steps):
        step = lowered.compile(compiler_options={"hloom": spec})
    compile_s = time.perf_counter() - start_s
    newest = hloom.records()[-1:]
    record = newest[0] if newest and not (before and newest[0] is before[0]) else None
    figures, kinds = step.memory_analysis(), ("argument", "output", "alias", "temp")
    runs = record.runs if record else ()
    dump_dir = record.dump_dir if record else None
    numbers = {
        "spec": spec,
        "memory": {f"{kind}_bytes": getattr(figures, f"{kind}_size_in_bytes") for kind in kinds},
        "pass_s": sum(run.seconds for run in runs),
        "compile_s": record.compile_s if record else compile_s,
        "passes": [{"name": r.name, "summary": r.summary, "seconds": r.seconds} for r in runs],
        "fell_back": record.fell_back if record else None,
        "dump_dir": None if dump_dir is None else str(dump_dir),
    }
    return CompiledStep(step, numbers)


def train(
    programs: Sequence[CompiledStep],
    first_state: Callable[[], Any],
    batches: program.Tokens,
    tell: Callable[[str], None],
    dumped: CompiledStep | None = None,
) -> None:
    """Trains every program on the batches, each from a first state of its own, and adds losses and
    seconds to its numbers.

    They take turns at each batch, so that other load on the machine affects all of them alike. The
    steps of `dumped`, one of the programs, are `hloom.step`s, counted from 1.
    """
    states = [first_state() for _ in programs]
    for each in programs:
        each.numbers.update(losses=[], step_s=[])
    for number, batch in enumerate(batches, start=1):
        for index, each in enumerate(programs):
            start_s = time.perf_counter()
            with hloom.step(number) if each is dumped else nullcontext():
                states[index], loss = each.step(states[index], batch)
            each.numbers["losses"].append(float(loss))
            each.numbers["step_s"].append(time.perf_counter() - start_s)
        losses = [f"{each.numbers['losses'][-1]:.3f}" for each in programs]
        tell(f"training, loss {' and '.join(losses)}")
    for each in programs:  # the first step warms the caches up
        times = each.numbers["step_s"]
        each.numbers["median_step_s"] = statistics.median(times[1:] or times)


def largest_difference(one: Sequence[float], other: Sequence[float]) -> float:
    """Returns the largest difference of two runs' losses, relative to the first; NaN counts as
    infinite."""
    differences = [abs(a - b) / max(abs(a), 1e-9) for a, b in zip(one, other, strict=True)]
    return max((d if d == d else float("inf") for d in differences), default=0.0)


def _for_target(
    console: PlainConsole, arguments: argparse.Namespace, step: TrainStep
) -> tuple[Numbers, Section]:
    """Compiles the step for a device that is only described."""
    target = arguments.target
    try:
        sharding = deviceless.placement(target)
    except deviceless.MissingCompilerError as error:
        note = Note(f"Skipped: {error}", tone="warning")
        return {"skipped": str(error)}, Section("", notes=(note,))
    with console.status(f"compiling for {target}"):
        lowered, out = step.lower(sharding), arguments.out / target
        off, on = (compile_step(lowered, spec, dump_to=out) for spec in ("off", arguments.spec))
    title, found = f"The same step compiled for {target}", {"off": off.numbers, "on": on.numbers}
    return found, _compared(title, **found)


def _losses(off: Numbers, on: Numbers, largest: float) -> Section:
    title, agree = "Loss at each step", largest <= TOLERANCE
    columns = [(name, Kind.COUNT) for name in ("step", "hloom off", "hloom on", "difference")]
    pairs = enumerate(zip(off["losses"], on["losses"], strict=True), start=1)
    rows = [(step, f"{a:.6f}", f"{b:.6f}", f"{b - a:+.1e}") for step, (a, b) in pairs]
    text = f"largest relative difference {largest:.1e}, tolerance {TOLERANCE:.0e} (float32)."
    said = ("The losses agree", "ok") if agree else ("THE LOSSES DISAGREE", "error")
    table = table_of(title, columns, rows, most=0)
    return Section(title, tables=(table,), notes=(Note(text, *said),))


def _compared(title: str, off: Numbers, on: Numbers) -> Section:
    """Returns the memory, the times and the passes of a step, hloom off and on."""
    both = [(kind, size_bytes, on["memory"][kind]) for kind, size_bytes in off["memory"].items()]
    times = {"passes": "pass_s", "XLA compile": "compile_s", "step (median)": "median_step_s"}
    both += [(name, off[key], on[key]) for name, key in times.items() if key in off]
    shown = [size] * len(off["memory"]) + [seconds] * len(times)
    columns = [(name, Kind.COUNT) for name in ("hloom off", "hloom on")]
    columns = [("", Kind.TEXT), *columns, ("change", Kind.CHANGE)]
    rows = [
        (name, tell(a), tell(b), (b - a) / a if a else None)
        for (name, a, b), tell in zip(both, shown, strict=False)
    ]
    passes = [("pass", Kind.CODE), ("what it did", Kind.TEXT), ("time", Kind.SECONDS)]
    runs = [tuple(each.values()) for each in on["passes"]]
    did = table_of(f"What the passes of '{on['spec']}' did", passes, runs, most=0)
    return Section(title, tables=(table_of("", columns, rows, most=0), did))


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"at least 1, got {number}")
    return number
