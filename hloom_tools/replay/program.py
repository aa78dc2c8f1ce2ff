"""Compiles a dumped module under any pipeline, and runs and times it on this machine's devices."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.extend.mlir import ir
from numpy.typing import NDArray

from hloom import files, plugin, targets
from hloom._jax.devices import device_facts, platform_of
from hloom._jax.executables import MemoryFigures
from hloom._jax.execution import (
    argument_shardings,
    assembled,
    compile_module,
    compile_options_for,
    execute,
)
from hloom._jax.modules import make_context
from hloom._jax.options import OPTION, given_options
from hloom._jax.out_of_memory import out_of_memory
from hloom.compiling.compile import compile_program
from hloom.compiling.cross_process import Agreement
from hloom.compiling.request import CompileRequest, CompileResult, RefusedError
from hloom.compiling.xla_options import XlaOptions
from hloom.dumps.read.dump import ModuleDump
from hloom.lowering.placement import Placement
from hloom.passes.framework.errors import PassError, reason_of
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.framework.text import pluralize, size
from hloom.passes.ir.mesh import PARTITIONS, REPLICAS
from hloom.record import CompileRecord
from hloom.show import units
from hloom.targets import deviceless
from hloom.targets.devices import machine_bytes, placement_of, target_of, with_options
from hloom_tools.progress import progress_line
from hloom_tools.replay import DoesNotFitError, ReplayError, trust
from hloom_tools.replay import manifest as recorded
from hloom_tools.replay.signature import SignatureValue, values_of

Array = NDArray[Any]

_MOST_DEVICES = 4096
"""The most devices of a replay; each virtual CPU device takes memory and threads."""

_CPU_DEVICES = re.compile(r"--xla_force_host_platform_device_count=(\d+)")

_PLACE = re.compile(r'"-":(\d+:\d+): (?:error: )?(.*)')
"""The prefix of MLIR's messages about text from memory."""


@dataclass(frozen=True)
class ReplayProgram:
    """A module of a dump, and the devices that it runs on now.

    Attributes:
      module: the input, in a context of its own, with `source` for messages.
      arguments, results: the arguments and results of `Runnable.run`, in order, without tokens.
      argument_count: the number of arguments with tokens.
      devices: JAX's devices, one for each partition.
      target: the target that the passes plan for: the recorded device, on this machine's platform.
      placement: where the lowered program runs.
      runs: whether the devices are present; False where they are only described.
      notes: the differences from the dump, as phrases.
    """

    name: str
    module: ir.Module
    source: str
    arguments: tuple[SignatureValue, ...]
    results: tuple[SignatureValue, ...]
    argument_count: int
    spec: str
    devices: tuple[Any, ...]
    target: Target
    placement: Placement
    runs: bool = True
    options: Mapping[str, str] = field(default_factory=dict)
    dump: ModuleDump | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def load(cls, dump: ModuleDump, *, trusted: bool = False, **choices: Any) -> ReplayProgram:
        """Loads the program of a module folder, with the choices of `parse`.

        Raises ReplayError where it cannot be replayed on this machine.
        """
        file = dump.input_file
        if file is None:
            why = next((f": {each.why}" for each in dump.missing if each.what == "input"), "")
            raise ReplayError(
                f"{dump.folder} has no 00-input.mlir{why}. A replay starts from it; dump again."
            )
        try:
            text = files.read_text(file.parent, file.name)
        except OSError as error:
            raise ReplayError(f"{file} cannot be read: {error}") from error
        return cls.parse(text, source=str(file), dump=dump, trusted=trusted, **choices)

    @classmethod
    def parse(
        cls,
        text: str,
        *,
        source: str,
        dump: ModuleDump | None = None,
        target: str | None = None,
        with_options: bool = True,
        trusted: bool = True,
    ) -> ReplayProgram:
        """Parses the program from a module's text.

        Args:
          source: the origin of the text, for messages.
          target: a name of `hloom.targets`, to compile for a device that is only described; None
            for this machine's devices.
          with_options: whether to set the options of XLA that the program had set.
          trusted: whether custom calls that carry machine code, or may run any, are allowed.
        """
        manifest = {} if dump is None else dump.manifest
        module = _parse(text, source, manifest.get("versions"))
        try:
            if not trusted:
                trust.require_trust(module)
            notes = trust.remove_silent_callbacks(module)
            arguments, results, argument_count = values_of(
                module,
                recorded.names(manifest.get("arguments")),
                recorded.names(manifest.get("results")),
            )
            partitions = _partitions(module)
        except ReplayError as error:
            raise ReplayError(f"{source}: {error}") from error
        except UnicodeDecodeError as error:
            raise ReplayError(f"{source}: a name in the module is no UTF-8.") from error
        _prepare_devices(partitions)
        plugin.initialize()
        here = _described_devices(target, partitions) if target else _devices_here(partitions)
        if trust.calls_lapack(module):
            # JAX loads the library when it lowers any such call.
            jax.jit(jax.numpy.linalg.cholesky).lower(np.eye(1, dtype=np.float32))
        backend, grid = here[0].client, np.array(here)
        platform = platform_of(backend)
        found = target_of(platform, device_facts(backend, grid))
        planned = found if target else recorded.target(manifest.get("target"), found)
        options, left_out = recorded.options(manifest, platform) if with_options else ({}, [])
        others = recorded.notes(manifest, target or platform, planned, found)
        return cls(
            name=ir.StringAttr(module.operation.attributes["sym_name"]).value,
            module=module,
            source=source,
            arguments=arguments,
            results=results,
            argument_count=argument_count,
            spec=str(manifest.get("spec") or ""),
            devices=tuple(here),
            target=planned,
            placement=placement_of(found, grid, process=backend.process_index()),
            runs=target is None,
            options=options,
            dump=dump,
            notes=(*notes, *others, *left_out),
        )

    def compile(self, pipeline: Pipeline | str) -> Runnable:
        """Compiles the program under a pipeline, or a spec ("off" for none).

        Nothing falls back: raises SpecError for a mistaken spec, PassError where a pass fails or
        XLA refuses the passes' result, and ReplayError where XLA refuses the program itself:
        DoesNotFitError where it takes too much memory.
        """
        if isinstance(pipeline, str):
            pipeline = Pipeline.parse(pipeline, source="the spec")

        def compile_here(module: ir.Module, options: Mapping[str, Any]) -> Any:
            chosen = {**self.options, **options, OPTION: "off"}
            return compile_module(module, self.devices, chosen)

        given = given_options(compile_options_for(self.devices, self.options))
        request = CompileRequest(
            module=self.module,
            pipeline=pipeline,
            target=with_options(self.target, given),
            placement=self.placement,
            compile=compile_here,
            agreement=Agreement(self.module),
            xla_options=XlaOptions(given),
            falls_back=False,
        )
        try:
            spec = str(pipeline) or "off"
            with (
                self.module.context,
                ir.Location.unknown(),
                progress_line(f"compiling with '{spec}'"),
            ):
                result = compile_program(request)
        except RefusedError as refused:
            error = refused.__cause__
            assert error is not None
            raise self._refusal(error, pipeline, changed=refused.changed) from error
        return Runnable(self, spec, result)

    def _refusal(self, error: BaseException, pipeline: Pipeline, *, changed: bool) -> Exception:
        call = trust.place_of_call(self.module, str(error))
        here = f"{self.placement.platform} here"
        if call is not None:
            return ReplayError(
                f"{self.source}: {call} is not known to {here}: it belongs to another platform, or "
                f"to a library that registers it. XLA says: {error}"
            )
        if changed:
            return PassError(str(pipeline), "compile", reason_of(error))
        memory = out_of_memory(error)
        if memory is not None:
            refused = units.refused(memory.used_bytes, memory.limit_bytes)
            return DoesNotFitError(f"{self.source} does not fit {here}, XLA says: {refused}")
        return ReplayError(f"{self.source}: XLA refuses the module on {here}: {error}")


def _parse(text: str, source: str, versions: Any) -> ir.Module:
    with make_context():
        try:
            module = ir.Module.parse(text)
        except ir.MLIRError as error:
            raise ReplayError(_unreadable(error, source, versions)) from error
        if "sym_name" not in module.operation.attributes:  # JAX's compile requires one
            module.operation.attributes["sym_name"] = ir.StringAttr.get("module")
    return module


def _unreadable(error: ir.MLIRError, source: str, versions: Any) -> str:
    said = _PLACE.search(str(error))
    place, reason = (f"{source}:{said[1]}", said[2]) if said else (source, str(error))
    text = f"{place}: jax {jax.__version__} cannot read the module: {reason.rstrip('.')}."
    theirs = recorded.version(versions, "jax")
    if theirs is None:
        return f"{text} Another jax may have written it, whose StableHLO has other forms."
    if theirs == jax.__version__:
        return f"{text} The same jax wrote it: the file is damaged."
    return f"{text} jax {theirs} wrote it: replay with that one, pip install jax=={theirs}."


def _partitions(module: ir.Module) -> int:
    if (replicas := _count(module, REPLICAS)) > 1:
        raise ReplayError(
            f"the module is for {replicas} replicas (jax.pmap): only partitions (jax.jit) can be "
            "replayed."
        )
    return _count(module, PARTITIONS)


def _count(module: ir.Module, name: str) -> int:
    attributes = module.operation.attributes
    if name not in attributes:
        return 1
    count = attributes[name]
    if not isinstance(count, ir.IntegerAttr) or not 1 <= count.value <= _MOST_DEVICES:
        raise ReplayError(
            f"{name} is {str(count)[:40]}, and a replay wants a number from 1 to {_MOST_DEVICES}."
        )
    return count.value


def _described_devices(target: str, count: int) -> list[Any]:
    try:
        return list(deviceless.mesh(target, count).devices.flat)
    except (targets.TargetError, deviceless.MissingCompilerError) as error:
        raise ReplayError(str(error)) from error


def _prepare_devices(count: int) -> None:
    """Gives the CPU at least that many virtual devices, if JAX has not started."""
    deviceless.prepare()
    given = _CPU_DEVICES.search(os.environ.get("XLA_FLAGS", ""))
    if count > 1 and not (given and int(given[1]) >= count):
        # Once JAX has started, `_devices_here` counts the devices.
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", count)


def _devices_here(count: int) -> list[Any]:
    """Returns that many devices of one platform: JAX's default, or the CPU where that has too few.

    Raises ReplayError where there are too few of both.
    """
    found = jax.local_devices()
    if len(found) < count and found[0].platform != "cpu":
        with contextlib.suppress(RuntimeError):  # JAX_PLATFORMS leaves the CPU out
            found = jax.local_devices(backend="cpu")
    if len(found) < count:
        raise ReplayError(
            f"the module is for {pluralize(count, 'device')}, and here "
            f"{'is' if len(found) == 1 else 'are'} {len(found)} ({found[0].platform}). Set "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={count} before JAX starts."
        )
    return found[:count]


@dataclass(frozen=True)
class Runnable:
    """A program compiled under one pipeline, whose spec is "off" for none."""

    program: ReplayProgram
    spec: str
    result: CompileResult

    @property
    def memory(self) -> MemoryFigures:
        """Returns XLA's memory figures of one device."""
        return self.result.figures

    @property
    def record(self) -> CompileRecord:
        """Returns the record of the compile: the effect of the passes, and the times of the passes
        and XLA."""
        return self.result.record

    @property
    def pass_s(self) -> float:
        """Returns the seconds in the passes; 0 without any."""
        return 0.0 if self.spec == "off" else self.record.pass_s

    @property
    def step_bytes(self) -> int | None:
        """Returns the bytes of a run on one device; None where the backend does not report them."""
        return self.memory.step_bytes

    def run(self, arguments: Sequence[Array]) -> list[Array]:
        """Runs the program once; returns whole values on the host and leaves the arguments
        unchanged.

        Raises ReplayError where arguments do not fit, where the devices are only described, and
        where the run fails.
        """
        self._check(arguments)
        placed, executable = self._place(arguments), self.result.executable
        with self._running(), progress_line(f"running with '{self.spec}'"):
            found = execute(executable, placed)
            results = [(each.index, each.shape, found[each.index]) for each in self.program.results]
            wholes = jax.block_until_ready(assembled(executable, self.program.devices, results))
        # Copied, since on the CPU the host's array would share the device's memory.
        return [np.array(each) for each in wholes]

    def times_s(
        self, arguments: Sequence[Array], repeat: int, limit_s: float = 10.0
    ) -> list[float]:
        """Returns the seconds of each of `repeat` runs, after a warm-up, with arguments on the
        device.

        At least one run is timed, and none starts after `limit_s` seconds. Raises as `run` does.
        """
        self._check(arguments)
        placed = self._place(arguments)
        pairs = zip(self.program.arguments, arguments, strict=True)
        donated = [(value, argument) for value, argument in pairs if value.donated]
        seconds: list[float] = []
        end_s = time.perf_counter() + limit_s
        # Without a line of progress, whose thread would take time of a timed run.
        while len(seconds) < repeat + 1 and (len(seconds) < 2 or time.perf_counter() < end_s):
            for value, argument in donated:
                placed[value.index] = self._put(argument, value)
            jax.block_until_ready(placed)
            start_s = time.perf_counter()
            with self._running():
                jax.block_until_ready(execute(self.result.executable, placed))
            seconds.append(time.perf_counter() - start_s)
        return seconds[1:]

    def _check(self, arguments: Sequence[Array]) -> None:
        program = self.program
        if not program.runs:
            raise ReplayError(f"{program.name} was compiled for devices that are not here.")
        wanted_bytes = (self.step_bytes or 0) * len(program.devices)
        if program.placement.platform == "cpu" and wanted_bytes > machine_bytes():
            # Linux would kill this process, or another.
            raise ReplayError(
                f"{program.name} under '{self.spec}' takes {size(wanted_bytes)}, and this machine "
                f"has {size(machine_bytes())} of memory."
            )
        if len(arguments) != len(program.arguments):
            raise ReplayError(
                f"{program.name} takes {pluralize(len(program.arguments), 'argument')}, got "
                f"{len(arguments)}."
            )
        for value, argument in zip(program.arguments, arguments, strict=True):
            if argument.shape != value.shape or argument.dtype != value.dtype:
                raise ReplayError(
                    f"{value.name} is a {value.type}, got {argument.dtype}{list(argument.shape)}."
                )

    @cached_property
    def _shardings(self) -> tuple[jax.sharding.Sharding, ...]:
        kinds = {value.index: value.memory_kind for value in self.program.arguments}
        wanted = [kinds.get(index) for index in range(self.program.argument_count)]
        return argument_shardings(self.result.executable, self.program.devices, wanted)

    def _place(self, arguments: Sequence[Array]) -> list[Any]:
        values = {value.index: value for value in self.program.arguments}
        given = iter(arguments)
        # Every other argument is a token, which JAX passes as an array without elements.
        token = np.zeros(0, np.bool_)
        with self._running():
            return [
                self._put(next(given), values[index])
                if index in values
                else jax.device_put(token, sharding)
                for index, sharding in enumerate(self._shardings)
            ]

    def _put(self, argument: Array, value: SignatureValue) -> Any:
        # A donated argument is written over, and the host's array must not change.
        with jax.enable_x64(True):  # in any process 64-bit arguments keep their type
            return jax.device_put(argument, self._shardings[value.index], may_alias=False)

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        try:
            yield
        except jax.errors.JaxRuntimeError as error:
            raise ReplayError(
                f"{self.program.name} under '{self.spec}' failed while it ran: {reason_of(error)}"
            ) from error
