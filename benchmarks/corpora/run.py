"""Every module of a folder through every pass: what fails, and whether the interpreter agrees.

    python -m benchmarks.corpora.run FOLDER --out results.json

Reads every .mlir file below FOLDER, a corpus of StableHLO such as that project's own tests, and
splits it at lines `// -----` as mlir-opt does. What jaxlib's parser accepts goes through every pass
and budget, for a CPU and for an H100, in strict mode: nothing may fail, die or end in another
module the second time, the result verifies and its text parses back, and StableHLO's interpreter
finds the same results before and after wherever it can run the module. Modules run in child
processes, so that a crash is one failure more. Nothing is compiled.
"""

from __future__ import annotations

import argparse
import dataclasses
import faulthandler
import json
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import jax
from jax.extend.mlir import ir

from benchmarks.corpora.interpreter import evaluate
from benchmarks.corpora.module import Failure, Trial, return_checked, specs, with_checks_as_calls
from hloom import targets
from hloom._jax.modules import make_context
from hloom_tools.opt import source
from hloom_tools.opt.diagnostics import InputError

TARGETS = ("cpu", "h100_sxm")
LIMIT_S = 300
"""How long a module may take."""

Entry = dict[str, Any]
"""What became of one module, as JSON."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the corpus and prints the counts; 1 where something failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.corpora.run")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, help="where to write every module's outcome, as JSON")
    parser.add_argument("--only", default="", help="files whose path contains this")
    parser.add_argument("--modules", nargs="*", help="these alone, each as FILE:LINE")
    parser.add_argument("--part", default="1/1", help="e.g. 2/4: the second quarter of the files")
    chosen = parser.parse_args(arguments)
    part, parts = map(int, chosen.part.split("/"))
    files = [f for f in sorted(chosen.folder.rglob("*.mlir")) if chosen.only in str(f)]
    start_s = time.perf_counter()
    modules = [
        (str(file.relative_to(chosen.folder)), chunk)
        for file in files[part - 1 :: parts]
        if file.stat().st_size
        for chunk in source.split(source.read(str(file)), at_markers=True)
        if chosen.modules is None or f"{file.name}:{chunk.first_line}" in chosen.modules
    ]
    entries = []
    for entry in run_isolated(modules, _show):
        entries.append(entry)
        if len(entries) % 500 == 0:
            print(f"{len(entries)} of {len(modules)} modules", file=sys.stderr, flush=True)
    counts = count(entries)
    counts["files"] = len(files[part - 1 :: parts])
    counts["seconds"] = round(time.perf_counter() - start_s)
    if chosen.out is not None:
        report = {"jax": jax.__version__, "counts": counts, "modules": entries}
        chosen.out.write_text(json.dumps(report, indent=1), encoding="utf-8")
    print(json.dumps(counts, indent=1))
    return 1 if counts["failures"] else 0


def _show(entry: Entry) -> None:
    if entry["failures"]:
        first, *others = entry["failures"]
        where = f"{entry['file']}:{entry['line']}"
        more = f" and {len(others)} more" if others else ""
        print(where, *first.values(), sep=" | ", end=f"{more}\n", flush=True)


def count(entries: Sequence[Entry]) -> dict[str, Any]:
    """The outcomes of modules in numbers."""
    accepted = [each for each in entries if each["rejected"] is None]
    rejected = (
        re.sub(r"'[^']*'|`[^`]*`", "…", each["rejected"])[:80]
        for each in entries
        if each["rejected"] is not None
    )
    failures = [failure for each in entries for failure in each["failures"]]
    uninterpreted = Counter(each["interpreter"][:60] for each in accepted if each["interpreter"])
    return {
        "jax": jax.__version__,
        "modules": len(entries),
        "accepted": len(accepted),
        "with_failures": sum(bool(each["failures"]) for each in entries),
        "runs": sum(each["runs"] for each in entries),
        "changed": sum(each["changed"] > 0 for each in entries),
        "interpreted": sum(not each["interpreter"] for each in accepted),
        "results_compared": sum(each["compared"] for each in entries),
        "failures": dict(Counter(failure["kind"] for failure in failures)),
        "rejected": dict(Counter(rejected).most_common(12)),
        "not_interpreted": dict(uninterpreted.most_common(25)),
    }


def run_isolated(
    modules: Sequence[tuple[str, source.SourceChunk]], told: Callable[[Entry], None]
) -> Iterator[Entry]:
    """Runs modules in child processes, the next one where one dies; gives what became of each."""
    done = 0
    while done < len(modules):
        reader, writer = os.pipe()
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            os.close(reader)
            _run_and_exit(modules[done : done + 200], writer)
        os.close(writer)
        stage = "start"
        begun = done
        with os.fdopen(reader, encoding="utf-8") as pipe:
            for line in pipe:
                said = json.loads(line)
                if isinstance(said, str):
                    stage = said
                    continue
                told(said)
                yield said
                done += 1
        _, status = os.waitpid(child, 0)
        if status or done == begun:
            name, chunk = modules[done]
            what = signal.Signals(os.WTERMSIG(status)).name if status else "no answer"
            died = _entry(name, chunk)
            spec, _, target = stage.partition(" for ")
            died["failures"].append(asdict(Failure("died", spec, target, what)))
            if stage == "parse":
                died["rejected"] = f"the parser dies: {what}"
                died["failures"].clear()
            told(died)
            yield died
            done += 1


def _entry(name: str, chunk: source.SourceChunk) -> Entry:
    return {
        "file": name,
        "line": chunk.first_line,
        "rejected": None,
        "runs": 0,
        "changed": 0,
        "compared": 0,
        "interpreter": "died before",
        "failures": [],
        "seconds": 0.0,
    }


def _run_and_exit(modules: Sequence[tuple[str, source.SourceChunk]], writer: int) -> NoReturn:
    try:
        faulthandler.disable()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        with os.fdopen(writer, "w", encoding="utf-8") as pipe:

            def say(what: str | Entry) -> None:
                pipe.write(json.dumps(what) + "\n")
                pipe.flush()

            for name, chunk in modules:
                signal.alarm(LIMIT_S)
                say(run_one(name, chunk, say))
    finally:
        os._exit(0)


def run_one(name: str, chunk: source.SourceChunk, stage: Callable[[str], None]) -> Entry:
    """What becomes of one module."""
    start_s = time.perf_counter()
    entry = _entry(name, chunk)
    context = make_context()
    context.enable_multithreading(False)
    stage("parse")
    with context, ir.Location.unknown():
        try:
            text = with_checks_as_calls(chunk.data)
            module = source.parse(dataclasses.replace(chunk, data=text), context)
            return_checked(module)
        except InputError as error:
            entry["rejected"] = error.diagnostics[0].message
            return entry
        trial = Trial(module, stage)
        trial.run(specs(), [targets.load(each) for each in TARGETS])
        texts = [trial.plain, *trial.results]
    stage("interpreter")
    found = evaluate(texts)
    failures = list(trial.failures)
    if found.values:
        before, *after = found.values
        entry["interpreter"] = ""
        entry["compared"] = len(after)
        for result, values in zip(trial.results.values(), after, strict=False):
            # The interpreter's FFT of one module differs in its last bits from run to run.
            if values != before and len(set(evaluate([trial.plain] * 4).values)) == 1:
                message = f"{before} became {values}"[:300]
                failures.append(Failure("results", result.spec, result.target, message))
        if len(found.values) < len(texts):
            worse = list(trial.results.values())[len(after)]
            failures.append(Failure("interpreter", worse.spec, worse.target, found.reason))
    else:
        entry["interpreter"] = found.reason
    entry["runs"] = trial.runs
    entry["changed"] = len(trial.results)
    entry["failures"] = [asdict(each) for each in failures]
    entry["seconds"] = round(time.perf_counter() - start_s, 3)
    return entry


if __name__ == "__main__":
    sys.exit(main())
