"""`hloom bisect` finds the pass, and its decision, that changes a result or raises the peak."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jax.extend.mlir import ir
from rich.console import Console
from rich.text import Text

from hloom import files
from hloom.dumps.collect.program import module_text
from hloom.passes.framework.base import Pass
from hloom.passes.framework.errors import did_you_mean
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.text import pluralize
from hloom.passes.ir.clone import clone_module
from hloom.show.terminal import PlainConsole
from hloom_tools.bisect.search import (
    Bisection,
    Culprit,
    CulpritDecision,
    Probe,
    ResultsProbe,
    peak_probe,
    temp_bytes_of,
)
from hloom_tools.output import STANDARD_OUTPUT, add_json, write_json
from hloom_tools.replay import ReplayError, options
from hloom_tools.replay import arguments as inputs
from hloom_tools.replay.comparison import Tolerance
from hloom_tools.replay.decisions import Replayed, other_plans, replayed

_RISE_PERCENT = 1.0
"""The allowed rise of the peak: an additional copy is no fault of a pass."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `hloom bisect` to a parser."""
    parser.description = (
        "Finds the first pass with which a dumped module gives other results than without any, or "
        "with --peak takes more memory, and in a plan like remat's the single decision. Compiles "
        "and runs the module on this machine a dozen times or so. Ends with 0 where all is well, "
        "else with 1."
    )
    options.add_arguments(
        parser,
        passes="the passes to search (default: those of the dump, with the plan that was used)",
        target="with --peak, compile for this device, without one (needs jax[cuda13], or jax[tpu])",
    )
    parser.add_argument(
        "--peak",
        action="store_true",
        help="look for what raises XLA's temporary memory rather than for other results",
    )
    parser.add_argument(
        "--rise",
        type=options.not_negative,
        default=_RISE_PERCENT,
        metavar="PERCENT",
        help="with --peak, the rise that is none yet (default: %(default)s)",
    )
    parser.add_argument(
        "--decision",
        metavar="ID",
        help="no search: the decisions before this one, without it and with it",
    )
    parser.add_argument(
        "--alone", action="store_true", help="with --decision, without those before it"
    )
    parser.add_argument(
        "-o",
        "--out",
        "--write",
        type=Path,
        metavar="FOLDER",
        help="write the module without and with what was found: without.mlir, with.mlir",
    )
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Searches; returns 0 where nothing was found, else 1."""
    console = PlainConsole(soft_wrap=True, stderr=arguments.json == STANDARD_OUTPUT)
    return options.exit_status("hloom bisect", lambda: _Command(arguments, console).run())


class _Command:
    """One run of `hloom bisect`."""

    def __init__(self, arguments: argparse.Namespace, console: Console) -> None:
        self._arguments, self._console = arguments, console
        self._dump = options.chosen_module(arguments.dump)
        self._is_recorded = arguments.passes == options.RECORDED
        spec = self._dump.spec if self._is_recorded else arguments.passes
        self._pipeline = Pipeline.parse(spec or "off", source=str(self._dump.folder))
        if not self._pipeline.passes:
            raise ReplayError(
                f"{self._dump.folder}: no pass ran on this module, or the dump does not say which: "
                "name some to search with -p."
            )
        if arguments.target and not arguments.peak:
            raise ReplayError(
                f"--target {arguments.target} only compiles, so that there are no results to "
                "compare: add --peak."
            )
        self._program = options.load(arguments, self._dump)
        steps = replayed(self._pipeline, self._dump, afresh=not self._is_recorded)
        self._bisection = Bisection(self._program, steps, self._tell)

    def run(self) -> int:
        more = f" of {self._dump.folder}: '{self._pipeline}'"
        options.tell_program(self._console, self._program, more)
        if self._arguments.decision is not None:
            return self._repeat(*self._named(self._arguments.decision))
        if self._arguments.peak:
            culprit = self._bisection.find_peak(self._arguments.rise / 100)
        else:
            culprit = self._bisection.find_results(self._results_probe())
        others = other_plans(self._bisection.runs, self._dump) if self._is_recorded else ()
        if others:
            note = (
                f"Note: what was planned here is not what the dump has: {'; '.join(others)}. "
                "What differs then may not be what differed in its step."
            )
            self._console.print(Text(note, style="yellow"))
        if culprit is not None:
            self._tell_culprit(culprit)
        elif self._arguments.peak:
            rise = f"{self._arguments.rise:g} %"
            self._tell(f"No pass raises the temporary memory by more than {rise}.")
        else:
            self._tell("The passes change no result.")
        self._write_json({"culprit": None if culprit is None else self._values(culprit)})
        return 0 if culprit is None else 1

    def _values(self, culprit: Culprit) -> dict[str, Any]:
        """Returns what was found as values that `json.dumps` takes."""
        values = dataclasses.asdict(culprit) | {"pass": self._step(culprit.index).step.name}
        if culprit.decision is not None:
            values["decision"]["id"] = self._id(culprit.index, culprit.decision.decision.id)
        return values | {"command": self._command(culprit)}

    def _write_json(self, found: dict[str, Any]) -> None:
        if self._arguments.json is None:
            return
        values = {
            "module": self._program.name,
            "source": str(self._dump.folder),
            "spec": str(self._pipeline),
            "of": "peak" if self._arguments.peak else "results",
            "compiles": self._bisection.compiles,
        }
        write_json(self._arguments.json, values | found)

    def _results_probe(self) -> ResultsProbe:
        arguments = self._arguments
        given, kind = inputs.chosen(self._program, arguments.arguments, arguments.seed)
        self._tell(f"with {pluralize(len(given), f'{kind} argument')}")
        unchanged = self._bisection.compile(())
        return ResultsProbe(unchanged, given, Tolerance(arguments.tolerance))

    def _named(self, name: str) -> tuple[int, int]:
        """Returns the step, and the number among its decisions, that ``--decision`` names."""
        module = clone_module(self._program.module)
        passes = tuple(step.whole() for step in self._bisection.steps)
        Pipeline(passes).run(module, target=self._program.target)
        known = {
            self._id(index, decision.id): (index, number)
            for index, step in enumerate(self._bisection.steps)
            for number, decision in enumerate(step.decisions)
        }
        if name not in known:
            close = did_you_mean(name, known)
            raise ReplayError(
                f"--decision {name}: '{self._pipeline}' has {pluralize(len(known), 'decision')}, "
                f"none of that name.{close}"
            )
        return known[name]

    def _id(self, index: int, decision: str) -> str:
        """Returns a decision's name on the command line, with the pass's name in the dump's
        files."""
        return f"{index + 1:02d}-{self._step(index).step.name}/{decision}"

    def _step(self, index: int) -> Replayed:
        return self._bisection.steps[index]

    def _repeat(self, index: int, number: int) -> int:
        decisions = self._step(index).decisions
        first = number if self._arguments.alone else 0
        pair = decisions[first:number], decisions[first : number + 1]
        self._tell(f"{self._id(index, decisions[number].id)}: {decisions[number].description}")
        without, with_it = (self._bisection.passes_with(index, some) for some in pair)
        probe: Probe
        if self._arguments.peak:
            before = temp_bytes_of(self._bisection.compile(without))
            probe = peak_probe(before, self._arguments.rise / 100)
        else:
            probe = self._results_probe()
        verdicts = [self._bisection.judge_decisions(probe, index, some) for some in pair]
        self._write(without, with_it)
        is_culprit = verdicts[1].bad and not verdicts[0].bad
        told = dict(zip(("without", "with"), map(dataclasses.asdict, verdicts), strict=True))
        self._write_json({"decision": self._arguments.decision, "is_culprit": is_culprit, **told})
        return int(is_culprit)

    def _tell_culprit(self, culprit: Culprit) -> None:
        name = self._step(culprit.index).step.name
        self._console.print(Text(f"It is '{name}': {culprit.found.text}.", style="bold"))
        decision = culprit.decision
        if decision is None:
            passes = self._bisection.passes_with(culprit.index, None)
            self._write(passes[:-1], passes)
            self._tell("Its plan cannot be divided.")
        else:
            self._tell_decision(culprit.index, decision)
        self._tell(f"{pluralize(self._bisection.compiles, 'compile')}. To repeat it:")
        self._tell(f"  {self._command(culprit)}")

    def _tell_decision(self, index: int, culprit: CulpritDecision) -> None:
        title = f"Decision {culprit.number} of {culprit.of}: {culprit.decision.description}."
        self._console.print(Text(title, style="bold"))
        others = "none of them" if culprit.number == 1 else f"the {culprit.number - 1} before it"
        with_it = "with it alone" if culprit.alone else "with it as well"
        self._tell(f"  with {others}: {culprit.without.text}")
        self._tell(f"  {with_it}: {culprit.found.text}")
        decisions = self._step(index).decisions
        first = culprit.number - 1 if culprit.alone else 0
        self._write(
            self._bisection.passes_with(index, decisions[first : culprit.number - 1]),
            self._bisection.passes_with(index, decisions[first : culprit.number]),
        )

    def _command(self, culprit: Culprit) -> str:
        """Returns the command line that repeats the finding alone."""
        given = self._arguments
        same = [str(self._dump.folder)]
        for name in ("arguments", "tolerance", "seed", "target"):
            value = getattr(given, name)
            if value is not None and (name, value) != ("seed", 0):
                same += [f"--{name}", str(value)]
        same += ["--trust"] * given.trust + ["--no-options"] * (not given.with_options)
        if culprit.decision is None and not given.peak:
            specs = [str(step.step) for step in self._bisection.steps]
            with_it, without = specs[: culprit.index + 1], specs[: culprit.index]
            words = ["hloom", "replay", *same, "-p", ",".join(with_it)]
            words += ["--compare", ",".join(without) or "off"]
            return shlex.join(words)
        words = ["hloom", "bisect", *same]
        if not self._is_recorded:
            words += ["-p", given.passes]
        if given.peak:
            words += ["--peak", "--rise", f"{given.rise:g}"]
        if culprit.decision is not None:
            words += ["--decision", self._id(culprit.index, culprit.decision.decision.id)]
            words += ["--alone"] if culprit.decision.alone else []
        return shlex.join(words)

    def _write(self, without: Sequence[Pass], with_it: Sequence[Pass]) -> None:
        folder: Path | None = self._arguments.out
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        for name, passes in (("without", without), ("with", with_it)):
            module = clone_module(self._program.module)
            with module.context, ir.Location.unknown():
                Pipeline(tuple(passes)).run(module, target=self._program.target)
            files.write_whole(folder / f"{name}.mlir", module_text(module).encode())
        self._tell(f"Written: {folder}/without.mlir, {folder}/with.mlir")

    def _tell(self, text: str) -> None:
        self._console.print(Text(text))
