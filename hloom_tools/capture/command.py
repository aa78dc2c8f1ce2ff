"""`hloom capture` shows the part of a program that runs in CUDA graphs, and why the rest does
not."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
from jax.extend.mlir import ir

from hloom import plugin, targets
from hloom._jax.execution import compile_module
from hloom._jax.modules import make_context
from hloom._jax.options import OPTION
from hloom.dumps.read.dump import DumpError
from hloom.files import FileError, as_text, read_given
from hloom.passes.capture import Capture
from hloom.passes.framework.errors import reason_of
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.tables import Kind, Statement
from hloom.passes.ir.mesh import partition_count
from hloom.record import CompileRecord, records
from hloom.targets import deviceless
from hloom.xla.coverage import Coverage
from hloom.xla.thunk_dump import find_sequences, read_sequence, thunk_dump
from hloom_tools.document.content import Document, Note, Section, TableView, table_of
from hloom_tools.document.sources import entries
from hloom_tools.output import Findings, alias
from hloom_tools.replay.options import chosen_module
from hloom_tools.report.sections import left_out_tables

_SUFFIX = ".thunk_sequence.txt"
_BYTECODE_MAGIC = b"ML\xefR"
_DEFAULT_TARGET = "h100_sxm"
_COVERAGES = (
    ("compile", Kind.CODE),
    ("captured", Kind.COUNT),
    ("thunks", Kind.COUNT),
    ("share", Kind.SHARE),
    ("graphs", Kind.COUNT),
)


class CaptureError(ValueError):
    """The coverage cannot be determined; the text says what, where, and what to do."""


_DESCRIPTION = (
    "Shows how many of a program's kernels, copies and other thunks XLA puts into "
    "CUDA graphs, and each that it leaves out, with its line and the reason. A module is "
    "compiled for the target twice, without hloom and with it; no GPU is needed. A folder that XLA "
    "wrote to with --xla_dump_to is read."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the capture alone."""
    parser.add_argument(
        "-p",
        "--passes",
        default=Capture.name,
        metavar="SPEC",
        help="what to compile with (%(default)s)",
    )


def part(arguments: argparse.Namespace) -> Findings:
    """Returns what of a program runs in CUDA graphs.

    A StableHLO module, or that of a dump, is compiled twice, without hloom and with it. A folder
    that XLA wrote to with xla_dump_to, or one of its thunk sequences, is read. Raises CaptureError,
    SpecError and TargetError.
    """
    path, target = arguments.program, arguments.target
    if path.name.endswith(_SUFFIX) or (path.is_dir() and find_sequences(path)):
        sections = _sections_of_xla(path)
    else:
        if path.is_dir():
            path, dumped = _input_of(path)
            known = dumped in targets.names() and deviceless.described_platform(dumped) == "cuda"
            target = target or (dumped if known else None)
        Pipeline.parse(arguments.passes, source="--passes")
        try:
            sections = _sections_of_module(path, target or _DEFAULT_TARGET, arguments.passes)
        except deviceless.MissingCompilerError as error:
            raise CaptureError(str(error)) from error
    document = Document("In CUDA graphs", sections)
    return Findings(document, document.to_json())


add_arguments, run = alias(Capture.name, _DESCRIPTION, add_options, part)


def _input_of(folder: Path) -> tuple[Path, str]:
    """Returns the module in a dump, and the name of its target. Raises CaptureError where the
    folder holds none."""
    try:
        dump = chosen_module(folder)
    except DumpError as error:
        raise CaptureError(
            f"{folder}: no *.thunk_sequence.txt in it. XLA writes one for each GPU program with "
            f"XLA_FLAGS=--xla_dump_to=DIR. Nor is it a dump of hloom with one module: {error}"
        ) from error
    if dump.input_file is None:
        raise CaptureError(f"{folder} has no 00-input.mlir, the module as it was: dump it again.")
    return dump.input_file, str(entries(dump.manifest, "target").get("name"))


def _sections_of_xla(path: Path) -> tuple[Section, ...]:
    files = find_sequences(path) if path.is_dir() else [path]
    try:
        found = {file.name.removesuffix(_SUFFIX): read_sequence(file) for file in files}
    except FileError as error:
        raise CaptureError(f"{path}: {error.reason}.") from error
    except OSError as error:
        raise CaptureError(f"{path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise CaptureError(f"{path}: {error}") from error
    left_out = (Section(name, tables=_left_out(each)) for name, each in found.items())
    sections = (each for each in left_out if each.tables)
    return (Section("", tables=(_coverages(found),)), *sections)


def _sections_of_module(path: Path, target: str, passes: str) -> tuple[Section, ...]:
    if (platform := deviceless.described_platform(target)) != "cuda":
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
        try:
            before = _compile_without(module, devices)
            record = _compile_with(module, devices, passes)
        except jax.errors.JaxRuntimeError as error:
            raise CaptureError(
                f"{path}: XLA does not compile it for {target}: {reason_of(error)}"
            ) from error
    after = None if record.captured is None else record.captured.coverage
    plans = [run.plan for run in record.runs if run.name == Capture.name and not run.empty]
    notes = [_foreseen(plan) for plan in plans] or [f"{passes} has nothing to capture."]
    notes += [f"Note: {note}." for note in (record.captured.notes if record.captured else ())]
    shown = after or before
    if shown is not None and not shown.left_out:
        notes.append("Everything is captured.")
    table = _coverages({"XLA alone": before, passes: after})
    left_out = () if shown is None else _left_out(shown)
    first = Section("", tables=(table,), notes=tuple(map(Note, notes)))
    return (first, Section("", tables=left_out))


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


def _coverages(rows: Mapping[str, Coverage | None]) -> TableView:
    """Returns a table with the captured share of each compile; None stands for an unknown one."""
    cells = [
        (name, "not known", None, None, None)
        if found is None
        else (name, found.captured, found.thunks, f"{found.share:.1%}", found.graphs)
        for name, found in rows.items()
    ]
    return table_of("", _COVERAGES, cells, most=0)


def _left_out(coverage: Coverage) -> tuple[TableView, ...]:
    """Returns the tables of what is left out, with all of their rows."""
    return tuple(replace(table, most=0) for table in left_out_tables(coverage))


def _foreseen(plan: Mapping[str, Any]) -> str:
    """Returns the prediction of the pass, from its plan's `to_json`."""
    return f"Foreseen: {', '.join(map(str, Statement.of(plan).facts))}"
