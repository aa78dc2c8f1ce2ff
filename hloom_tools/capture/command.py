"""`hloom capture` shows the part of a program that runs in CUDA graphs, and why the rest does
not."""

from __future__ import annotations

import argparse
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from jax.extend.mlir import ir
from rich.console import Group, RenderableType
from rich.text import Text

from hloom import plugin, targets
from hloom._jax.execution import compile_module
from hloom._jax.modules import make_context
from hloom._jax.options import OPTION
from hloom.files import FileError, as_text, read_given
from hloom.passes.capture import Capture
from hloom.passes.framework.errors import SpecError
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.tables import Statement
from hloom.passes.ir.mesh import partition_count
from hloom.passes.ir.names import SourceLine
from hloom.record import CompileRecord, records
from hloom.show.terminal import PlainConsole, complain
from hloom.targets import deviceless
from hloom.xla.coverage import Coverage, LeftOut
from hloom.xla.thunk_dump import find_sequences, read_sequence, thunk_dump
from hloom_tools.report.text import table

_SUFFIX = ".thunk_sequence.txt"
_BYTECODE_MAGIC = b"ML\xefR"


class CaptureError(ValueError):
    """The coverage cannot be determined; the text says what, where, and what to do."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `hloom capture` to a parser."""
    parser.description = (
        "Shows how many of a program's kernels, copies and other thunks XLA puts into "
        "CUDA graphs, and each that it leaves out, with its line and the reason. A module is "
        "compiled for the target twice, without hloom and with it; no GPU is needed."
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        type=Path,
        help="a StableHLO module, e.g. of HLOOM_DUMP_TO, or a folder that XLA wrote to with "
        "--xla_dump_to",
    )
    parser.add_argument(
        "--target", default="h100_sxm", metavar="NAME", help="the GPU to compile for (h100_sxm)"
    )
    parser.add_argument(
        "-p",
        "--passes",
        default=Capture.name,
        metavar="SPEC",
        help="what to compile with (%(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs `hloom capture` and returns its exit status."""
    try:
        shown = report(arguments.file, target=arguments.target, passes=arguments.passes)
    except CaptureError as error:
        return complain("hloom capture", error)
    PlainConsole().print(shown)
    return 0


def report(path: Path, *, target: str, passes: str) -> RenderableType:
    """Returns the tables for a terminal.

    Args:
      path: a StableHLO module, which is compiled twice, without hloom and with it; or a folder that
        XLA wrote to with xla_dump_to, or one of its thunk sequences there.
      target: the target to compile for, a name of `hloom.targets`.
      passes: the spec to compile with.

    Raises CaptureError.
    """
    if path.is_dir() or path.name.endswith(_SUFFIX):
        return _report_dump(path)
    try:
        Pipeline.parse(passes, source="--passes")
        return _report_module(path, target, passes)
    except (SpecError, targets.TargetError, deviceless.MissingCompilerError) as error:
        raise CaptureError(str(error)) from error


def _report_dump(path: Path) -> RenderableType:
    files = find_sequences(path) if path.is_dir() else [path]
    if not files:
        raise CaptureError(
            f"{path}: no *.thunk_sequence.txt in it. XLA writes one for each GPU program with "
            "XLA_FLAGS=--xla_dump_to=DIR"
        )
    try:
        found = {file.name.removesuffix(_SUFFIX): read_sequence(file) for file in files}
    except FileError as error:
        raise CaptureError(f"{path}: {error.reason}.") from error
    except OSError as error:
        raise CaptureError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise CaptureError(f"{path}: {error}") from error
    parts: list[RenderableType] = [_coverages(found)]
    for name, each in found.items():
        if each.left_out:
            parts += [Text(f"\n{name}"), _left_out(each.left_out)]
    return Group(*parts)


def _report_module(path: Path, target: str, passes: str) -> RenderableType:
    if (platform := targets.described_platform(target)) != "cuda":
        raise CaptureError(f"{target} is no GPU that runs CUDA graphs, but of platform {platform}.")
    deviceless.prepare()
    text = _module_text(path)
    plugin.initialize()
    with make_context():
        try:
            module = ir.Module.parse(text)
        except ir.MLIRError as error:
            raise CaptureError(f"{path}: not a module of StableHLO: {error}") from error
        if "sym_name" not in module.operation.attributes:  # JAX's compile requires one
            module.operation.attributes["sym_name"] = ir.StringAttr.get("module")
        devices = list(deviceless.mesh(target, partition_count(module)).devices.flat)
        before = _compile_without(module, devices)
        record = _compile_with(module, devices, passes)
    after = None if record.captured is None else record.captured.coverage
    parts: list[RenderableType] = [_coverages({"XLA alone": before, passes: after}), Text()]
    plans = [run.plan for run in record.runs if run.name == Capture.name and not run.empty]
    parts += [_foreseen(plan) for plan in plans] or [Text(f"{passes} has nothing to capture.")]
    if record.captured is not None:
        parts += [Text(f"Note: {note}.") for note in record.captured.notes]
    shown = after or before
    if shown is not None:
        parts += [Text(), _left_out(shown.left_out)]
    return Group(*parts)


def _module_text(path: Path) -> str:
    try:
        content = read_given(path)
        if content.startswith(_BYTECODE_MAGIC):
            raise CaptureError(
                f"{path}: MLIR bytecode: `hloom-opt {shlex.quote(str(path))}` writes it as text."
            )
        return as_text(content, path.name)
    except FileError as error:
        raise CaptureError(f"{path}: {error.reason}: a module of StableHLO is wanted.") from error
    except OSError as error:
        raise CaptureError(f"{path} cannot be read: {error.strerror}.") from error


def _compile_without(module: ir.Module, devices: list[object]) -> Coverage | None:
    with thunk_dump({}) as dump:
        compile_module(module, devices, {**dump.options, OPTION: "off"})
        return dump.read()


def _compile_with(module: ir.Module, devices: list[object], passes: str) -> CompileRecord:
    compile_module(module, devices, {OPTION: passes})
    record = records()[-1]
    if record.fell_back is not None:
        raise CaptureError(record.fell_back)
    return record


def _coverages(rows: Mapping[str, Coverage | None]) -> RenderableType:
    """Returns a table with the captured share of each compile; None stands for an unknown one."""
    return table(
        ("compile", "captured>", "thunks>", "share>", "graphs>"),
        (
            (name, "not known", "", "", "")
            if found is None
            else (
                name,
                str(found.captured),
                str(found.thunks),
                f"{found.share:.1%}",
                str(found.graphs),
            )
            for name, found in rows.items()
        ),
    )


def _left_out(found: Iterable[LeftOut]) -> RenderableType:
    """Returns a table of the operations that are left out: the number of thunks, the place, and the
    reason."""
    counts = Counter(
        (_name(each), SourceLine(each.line, each.library).short, each.reason) for each in found
    )
    if not counts:
        return Text("Everything is captured.")
    columns = ("thunks>", "operation", "line", "why not captured")
    return table(columns, ((str(count), *row) for row, count in counts.items()))


def _foreseen(plan: Mapping[str, Any]) -> RenderableType:
    """What the pass foresaw, from its plan's `to_json`."""
    return Text(f"Foreseen: {', '.join(map(str, Statement.of(plan).facts))}")


def _name(each: LeftOut) -> str:
    kind = each.kind.removeprefix("k")
    return f"{kind} {each.operation or each.instruction}".rstrip()
