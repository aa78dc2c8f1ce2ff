"""`hloom replay` runs a dumped module again and compares its results."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray
from rich.console import Console
from rich.text import Text

from hloom.dumps.read.dump import DumpError, ModuleDump
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.text import pluralize, size
from hloom.show.terminal import PlainConsole
from hloom_tools.document.content import Document
from hloom_tools.document.terminal import show
from hloom_tools.output import STANDARD_OUTPUT, add_json, write_json
from hloom_tools.replay import DoesNotFitError, ReplayError, options, table
from hloom_tools.replay import arguments as inputs
from hloom_tools.replay.comparison import Tolerance, compare
from hloom_tools.replay.decisions import other_plans, replayed
from hloom_tools.replay.interpreter import interpret
from hloom_tools.replay.program import ReplayProgram
from hloom_tools.replay.table import Run, Verdict

Array = NDArray[Any]

OFF = "off"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `hloom replay` to a parser."""
    parser.description = (
        "Runs a dumped module on this machine, with the arguments that it had in its step or with "
        "random ones, under two pipelines, compares their results value by value, and times them. "
        "Ends with 0 where all are equal within the tolerance, else with 1."
    )
    options.add_arguments(
        parser,
        passes="what to run it with (default: what it was compiled with)",
        target="only compile, for this device, without one (needs jax[cuda13], or jax[tpu])",
    )
    parser.add_argument(
        "--compare",
        default=OFF,
        metavar="SPEC",
        help="what is taken to be right: another spec, or 'recorded' (default: off)",
    )
    parser.add_argument(
        "--interpret",
        action="store_true",
        help="ask StableHLO's reference interpreter as well: for small programs on one device",
    )
    parser.add_argument(
        "--repeat",
        type=_count,
        default=10,
        metavar="N",
        help="timed runs of each, fewer where they take long; 0 for none (default: %(default)s)",
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Replays; returns 0 where all results are equal within the tolerance, else 1."""
    console = PlainConsole(stderr=arguments.json == STANDARD_OUTPUT)
    return options.exit_status("hloom replay", lambda: _replay(arguments, console))


def _replay(arguments: argparse.Namespace, console: PlainConsole) -> int:
    module = options.chosen_module(arguments.dump)
    ways = dict([_way(arguments.compare, module, "--compare")])
    ways.setdefault(*_way(arguments.passes, module, "--passes"))
    program = options.load(arguments, module)
    here = pluralize(len(program.devices), f"{program.devices[0].device_kind} device")
    options.tell_program(console, program, f" of {module.folder}, on {here}")
    # Read before the compile, which may take minutes.
    kind, seed = arguments.arguments, arguments.seed
    given, kind = inputs.chosen(program, kind, seed) if program.runs else ([], "")
    all_runs = list(_compiled(ways, program, console))
    for each in all_runs:
        record, notes = each.runnable.record, []
        if record.complaint is not None:
            notes.append(record.complaint)
        # For a device that the user names, different plans are intended.
        is_planned_again = each.title == (module.spec or OFF) and arguments.target is None
        if is_planned_again and (others := other_plans(record.runs, module)):
            notes.append(f"not planned as in the dump: pass {', '.join(others)}.")
        for note in notes:
            console.print(Text(f"{each.title}: {note}", style="yellow"))
    opinions: list[Verdict] = []
    if program.runs:
        total = size(sum(array.nbytes for array in given))
        console.print(Text(f"{pluralize(len(given), f'{kind} argument')}, {total}"))
        if kind == "random" and any(each.dtype.kind in "iu" for each in program.arguments):
            console.print(Text("Random integers are below 8, whatever the program wants of them."))
        opinions = _opinions(arguments, program, all_runs, given, kind, console)
        all_runs = _timed(all_runs, given, arguments.repeat)
    show(Document("", (table.runs(all_runs), *map(table.opinion, opinions))), console)
    if program.runs and not opinions:
        console.print(
            Text(
                f"Nothing to compare: '{all_runs[0].title}' alone ran. Name another pipeline with "
                "-p or --compare, or use --interpret."
            )
        )
    if arguments.json is not None:
        write_json(arguments.json, _report(program, all_runs, opinions))
    return 0 if all(opinion.comparison.equal for opinion in opinions) else 1


def _compiled(
    ways: Mapping[str, Pipeline], program: ReplayProgram, console: Console
) -> Iterator[Run]:
    """Yields a run for each pipeline; of several, one whose program does not fit the device is
    reported and skipped."""
    refused: list[tuple[str, DoesNotFitError]] = []
    for title, pipeline in ways.items():
        try:
            yield Run(title, program.compile(pipeline))
        except DoesNotFitError as error:
            refused.append((title, error))
    if len(refused) == len(ways):
        raise refused[-1][1]
    for title, why in refused:
        console.print(Text(f"{title}: {why}", style="yellow"))


def _way(spec: str, module: ModuleDump, source: str) -> tuple[str, Pipeline]:
    """Returns the title of a pipeline, and the pipeline."""
    if spec != options.RECORDED:
        pipeline = Pipeline.parse(spec, source=source)
        return str(pipeline) or OFF, pipeline
    pipeline = Pipeline.parse(module.spec or OFF, source=str(module.folder / "manifest.json"))
    try:
        # The dump's own plans: a measured pass might plan otherwise here.
        planned = Pipeline(tuple(step.whole() for step in replayed(pipeline, module)))
    except ReplayError:
        planned = pipeline
    return str(pipeline) or OFF, planned


def _opinions(
    arguments: argparse.Namespace,
    program: ReplayProgram,
    all_runs: Sequence[Run],
    given: Sequence[Array],
    kind: str,
    console: Console,
) -> list[Verdict]:
    """Compares the results of each run with the others, the interpreter and the dumped step."""
    names = [value.name for value in program.results]
    results = {each.title: each.runnable.run(given) for each in all_runs}
    wanted, got = all_runs[0].title, all_runs[-1].title
    pairs = [(got, wanted)] if got != wanted else []
    if arguments.interpret:
        results["the interpreter"] = interpret(program, given)
        pairs.append((got, "the interpreter"))
        if not compare(results[got], results[wanted], names).bits_equal:
            pairs.append((wanted, "the interpreter"))
    if kind == "dumped":
        try:
            dumped = inputs.dumped_results(program)
        except (ReplayError, DumpError) as error:
            dumped = None
            console.print(Text(f"Not compared with the step's own results: {error}", "yellow"))
        if dumped is not None:
            results["the step"] = dumped
            pairs.append((got, "the step"))
    tolerance = Tolerance(arguments.tolerance)
    return [
        Verdict(one, other, compare(results[one], results[other], names, tolerance))
        for one, other in pairs
    ]


def _timed(all_runs: Sequence[Run], given: Sequence[Array], repeat: int) -> list[Run]:
    """Returns the runs with their times."""
    times_s: dict[str, list[float]] = {each.title: [] for each in all_runs}
    # Each is timed in two turns, so that other load on the machine does not affect only one of
    # them.
    for count in filter(None, (repeat // 2, repeat - repeat // 2)):
        for each in all_runs:
            times_s[each.title] += each.runnable.times_s(given, count)
    return [Run(each.title, each.runnable, times_s[each.title]) for each in all_runs]


def _report(
    program: ReplayProgram, all_runs: Sequence[Run], opinions: Sequence[Verdict]
) -> dict[str, Any]:
    return {
        "module": program.name,
        "source": program.source,
        "devices": [device.device_kind for device in program.devices],
        "notes": list(program.notes),
        "runs": [
            {
                "spec": each.title,
                "step_bytes": each.runnable.step_bytes,
                "pass_s": each.runnable.pass_s,
                "compile_s": each.runnable.record.compile_s,
                "times_s": list(each.times_s),
                "complaint": each.runnable.record.complaint,
            }
            | dataclasses.asdict(each.runnable.memory)
            for each in all_runs
        ],
        "comparisons": [
            {"got": each.got, "wanted": each.wanted} | each.comparison.to_json()
            for each in opinions
        ],
    }


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"a whole number of 0 or more, got {text}")
    return int(text)
