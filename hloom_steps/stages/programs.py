"""The programs of a step in stages, with the arguments and results of each for one microbatch.

All else follows from these lists. A value that one stage computes and another one reads is a
transfer; one that a later program of its own stage reads is a residual. Where two stages read one
parameter both hold it, and both return a gradient of it: the parameter's gradient is their sum.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from jax.extend.mlir import ir

from hloom.passes.framework.tables import Described


@dataclass(frozen=True)
class Parameter:
    """A differentiated argument of the step, or slices of its leading axis.

    Attributes:
      leaf: the argument's number among all arguments of the step.
      start: the first slice; None for the whole.
      stop: the last slice, exclusive; None for the whole.
    """

    leaf: int
    start: int | None = None
    stop: int | None = None

    def overlaps(self, other: Parameter) -> bool:
        """Whether both have slices, or the whole, of one argument in common."""
        if self.leaf != other.leaf:
            return False
        if self.start is None or self.stop is None or other.start is None or other.stop is None:
            return True
        return self.start < other.stop and other.start < self.stop


@dataclass(frozen=True)
class Batch:
    """Any other argument of the step, e.g. data and random keys, for one microbatch."""

    leaf: int


@dataclass(frozen=True)
class Cotangent:
    """The cotangent of an output: the weight of the microbatch's loss in the step's loss.

    Attributes:
      number: the cotangent's number among the arguments that are cotangents.
    """

    number: int


@dataclass(frozen=True)
class StageValue:
    """An array that an earlier program of the microbatch returns: one of `StagePrograms.values`."""

    number: int


@dataclass(frozen=True)
class Gradient:
    """The gradient of a parameter, or a term of it, of one microbatch."""

    parameter: Parameter


@dataclass(frozen=True)
class StageOutput:
    """One of the step's own results of one microbatch.

    Attributes:
      number: its number among the results that are no gradients.
    """

    number: int


Source = Parameter | Batch | Cotangent | StageValue
Result = StageValue | Gradient | StageOutput


class Direction(StrEnum):
    """The part of a stage's work that a program does."""

    FORWARD = "forward"
    BACKWARD = "backward"
    """Returns all gradients; or only those that earlier stages wait for, if a program of weights
    exists."""
    WEIGHTS = "weights"
    """Returns the gradients of parameters, where they have their own program. The first stage has
    none, since no stage waits for its results."""


@dataclass(frozen=True)
class StageProgram:
    """One of the programs.

    Attributes:
      stage: the stage, from 0.
      kind: the part of the stage's work.
      function: the name of the function in `StagePrograms.code`.
      reads: the sources of the function's arguments, in order, each once.
      gives: the kinds of its results, in order, each once.
      arguments: the types of the arguments.
      results: the types of the results.
      read_bytes: the bytes of each argument on a device.
      seconds: its time, by rooflines of a device.
    """

    stage: int
    kind: Direction
    function: str
    reads: tuple[Source, ...]
    gives: tuple[Result, ...]
    arguments: tuple[ir.Type, ...]
    results: tuple[ir.Type, ...]
    read_bytes: tuple[int, ...]
    seconds: float

    @property
    def name(self) -> str:
        """Returns its printed name, "stage 2 backward"."""
        return f"stage {self.stage} {self.kind}"


@dataclass(frozen=True)
class Crossing:
    """An array that one program computes and others read.

    Attributes:
      name: its operation and the user's line, "dot_general model.py:25".
      bytes: its size on a device of a stage.
      described: its operation for tables.
    """

    name: str
    bytes: int
    described: Described


@dataclass(frozen=True)
class Transfer:
    """A value that goes from one stage to another.

    Attributes:
      value: the number of the value.
      source: the stage that computes it.
      target: a stage that reads it.
      kind: the direction in which it goes, that of the program that computes it.
    """

    value: int
    source: int
    target: int
    kind: Direction


@dataclass(frozen=True)
class StagePrograms:
    """The programs of one microbatch of a step, in an order in which they can run.

    Attributes:
      code: the module that holds their functions; its main runs all of them, one by one.
      count: how many stages there are.
      programs: the forward programs of all stages, then backward ones from the last stage on.
      values: the values between programs, by number.
    """

    code: ir.Module
    count: int
    programs: tuple[StageProgram, ...]
    values: tuple[Crossing, ...]

    def of_stage(self, stage: int) -> list[StageProgram]:
        """Returns the programs of a stage, in the order in which they run."""
        return [program for program in self.programs if program.stage == stage]

    @functools.cached_property
    def makers(self) -> dict[int, StageProgram]:
        """Returns, for each value, the program that returns it."""
        return {
            given.number: program
            for program in self.programs
            for given in program.gives
            if isinstance(given, StageValue)
        }

    @functools.cached_property
    def readers(self) -> dict[int, list[str]]:
        """Returns, for each value, the names of the programs that read it, in the order in which
        they run."""
        found: dict[int, list[str]] = {number: [] for number in range(len(self.values))}
        for program in self.programs:
            for number in sorted(_values_of(program.reads)):
                found[number].append(program.name)
        return found

    @functools.cached_property
    def transfers(self) -> tuple[Transfer, ...]:
        """Returns the values that go from one stage to another, in the order of the programs that
        compute them."""
        targets = {
            (read.number, program.stage)
            for program in self.programs
            for read in program.reads
            if isinstance(read, StageValue) and self.makers[read.number].stage != program.stage
        }
        order = {each.function: number for number, each in enumerate(self.programs)}
        return tuple(
            Transfer(value, maker.stage, target, maker.kind)
            for value, target in sorted(
                targets, key=lambda each: (order[self.makers[each[0]].function], each)
            )
            if (maker := self.makers[value])
        )

    def residuals(self, stage: int) -> list[int]:
        """Returns the values that a stage holds from its forward program for its later ones, in
        order."""
        programs = self.of_stage(stage)
        there = {
            given.number
            for program in programs
            if program.kind is Direction.FORWARD
            for given in program.gives
            if isinstance(given, StageValue)
        }
        for program in programs:
            if program.kind is Direction.FORWARD:
                there |= _values_of(program.reads)
        later = [_values_of(p.reads) for p in programs if p.kind is not Direction.FORWARD]
        return sorted(there & set().union(*later))

    def residual_bytes(self, stage: int) -> int:
        """Returns the bytes of one microbatch's residuals on a device of the stage."""
        return sum(self.values[value].bytes for value in self.residuals(stage))

    def parameter_bytes(self, stage: int) -> int:
        """Returns the bytes of the parameters that a stage's programs read, on a device of the
        stage."""
        return sum(
            {
                source: size_bytes
                for program in self.of_stage(stage)
                for source, size_bytes in zip(program.reads, program.read_bytes, strict=True)
                if isinstance(source, Parameter)
            }.values()
        )

    def parameters(self, stage: int) -> list[Parameter]:
        """Returns the parameters that a stage reads, or returns a gradient of."""
        found = set[Parameter]()
        for program in self.of_stage(stage):
            found.update(each for each in program.reads if isinstance(each, Parameter))
            found.update(each.parameter for each in program.gives if isinstance(each, Gradient))
        return sorted(found, key=lambda each: (each.leaf, each.start or 0, each.stop or 0))

    @property
    def shared(self) -> list[int]:
        """Returns the leaves of parameters of which several stages hold the same slices."""
        held = [self.parameters(stage) for stage in range(self.count)]
        return sorted(
            {
                one.leaf
                for stage, parameters in enumerate(held)
                for one in parameters
                for later in held[stage + 1 :]
                for other in later
                if one.overlaps(other)
            }
        )

    def seconds(self, stage: int) -> float:
        """Returns the seconds of a stage for one microbatch."""
        return sum(program.seconds for program in self.of_stage(stage))

    @property
    def longest(self) -> float:
        """Returns the seconds of the longest stage for one microbatch."""
        return max(self.seconds(stage) for stage in range(self.count))

    @property
    def balance(self) -> float:
        """Returns the longest stage's time over the mean."""
        total = sum(self.seconds(stage) for stage in range(self.count))
        return self.longest * self.count / total if total else 1.0


def _values_of(sources: Iterable[Source]) -> set[int]:
    return {each.number for each in sources if isinstance(each, StageValue)}
