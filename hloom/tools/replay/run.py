"""Runs a compiled program on the devices that are here, and times it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from numpy.typing import NDArray

from hloom._jax.executables import MemoryFigures
from hloom._jax.execution import argument_shardings, assembled, execute
from hloom.compiling.request import CompileResult
from hloom.passes.framework.errors import reason_of
from hloom.passes.framework.text import pluralize
from hloom.record import CompileRecord
from hloom.targets.devices import machine_bytes
from hloom.tools.replay.errors import ReplayError
from hloom.tools.replay.signature import Value
from hloom.units import size

if TYPE_CHECKING:
    from hloom.tools.replay.program import ReplayProgram

Array = NDArray[Any]


@dataclass(frozen=True)
class Runnable:
    """A program that was compiled under one pipeline, whose spec is "off" for none."""

    program: ReplayProgram
    spec: str
    result: CompileResult

    @property
    def memory(self) -> MemoryFigures:
        """XLA's figures of one device."""
        return self.result.figures

    @property
    def record(self) -> CompileRecord:
        """What the passes did, and how long they and XLA took."""
        return self.result.record

    @property
    def pass_s(self) -> float:
        """Seconds in the passes; 0 without any."""
        return 0.0 if self.spec == "off" else self.record.pass_s

    @property
    def step_bytes(self) -> int | None:
        """What a run takes of one device's memory; None where the backend does not tell."""
        figures = self.memory
        taken = (figures.argument_bytes, figures.output_bytes, figures.temp_bytes)
        known = [each for each in taken if each is not None]
        return sum(known) - (figures.alias_bytes or 0) if len(known) == len(taken) else None

    def run(self, arguments: Sequence[Array]) -> list[Array]:
        """The results of one run, whole values on the host; the arguments stay as they are.

        Raises ReplayError where arguments do not fit, where the devices are only described, and
        where the run fails.
        """
        self._check(arguments)
        placed, executable = self._place(arguments), self.result.executable
        with self._running():
            found = execute(executable, placed)
            results = [(each.index, each.shape, found[each.index]) for each in self.program.results]
            wholes = jax.block_until_ready(assembled(executable, self.program.devices, results))
        # A copy: on the CPU the host's array would be the device's memory itself.
        return [np.array(each) for each in wholes]

    def times_s(
        self, arguments: Sequence[Array], repeat: int, limit_s: float = 10.0
    ) -> list[float]:
        """Seconds of each of `repeat` runs, after one that does not count, arguments in place.

        At least one, and no further one after `limit_s` seconds. Raises as `run` does.
        """
        self._check(arguments)
        placed = self._place(arguments)
        pairs = zip(self.program.arguments, arguments, strict=True)
        donated = [(value, argument) for value, argument in pairs if value.donated]
        seconds: list[float] = []
        end_s = time.perf_counter() + limit_s
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
            # Linux would end this process, or another.
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
        # What is no value is a token, which JAX passes as an array without elements.
        token = np.zeros(0, np.bool_)
        with self._running():
            return [
                self._put(next(given), values[index])
                if index in values
                else jax.device_put(token, sharding)
                for index, sharding in enumerate(self._shardings)
            ]

    def _put(self, argument: Array, value: Value) -> Any:
        # A donated argument is written over, and the host's array shall stay as it is.
        with jax.enable_x64(True):  # 64-bit arguments stay so, whatever the process is set to
            return jax.device_put(argument, self._shardings[value.index], may_alias=False)

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        try:
            yield
        except jax.errors.JaxRuntimeError as error:
            raise ReplayError(
                f"{self.program.name} under '{self.spec}' failed while it ran: {reason_of(error)}"
            ) from error
