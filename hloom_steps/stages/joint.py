"""Prepares a step and its gradients for the cut: loops over layers in parts, gradients as terms of
sums."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jax.extend.mlir import ir

from hloom.passes.analysis.device import DeviceView
from hloom.passes.analysis.memory_model.targets import memory_rules
from hloom.passes.analysis.program import Program
from hloom.passes.analysis.purity import erase_dead
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom.passes.ir.erase import erase
from hloom.passes.ir.op_facts import OpKind
from hloom_steps.split.boundary import COTANGENT, GRADIENT, marked
from hloom_steps.stages.programs import Batch, Cotangent, Parameter, Source
from hloom_steps.stages.rows import parameter_rows
from hloom_steps.stages.terms import terms_of
from hloom_steps.stages.trips import cut_group, layer_groups

PARAMETER = "hloom.parameter"
"""Attribute of an argument of the program: its gradient is a result, in the same order."""


@dataclass(frozen=True)
class JointSignature:
    """The marked arguments and results of a step, by number.

    Attributes:
      parameters: the arguments that are differentiated.
      gradients: the results that are gradients, one for each parameter.
      outputs: all other results.
    """

    parameters: tuple[int, ...]
    cotangents: tuple[int, ...]
    gradients: tuple[int, ...]
    outputs: tuple[int, ...]

    @classmethod
    def of(cls, function: ir.Operation) -> JointSignature:
        """Reads the signature of a module's entry function."""
        type_ = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
        gradients = marked(function, "res_attrs", GRADIENT)
        outputs = [number for number in range(len(type_.results)) if number not in gradients]
        return cls(
            marked(function, "arg_attrs", PARAMETER), marked(function, "arg_attrs", COTANGENT),
            gradients, tuple(outputs),
        )  # fmt: skip

    def source(self, argument: int) -> Source:
        """Returns the kind of an argument of the step."""
        if argument in self.parameters:
            return Parameter(argument)
        if argument in self.cotangents:
            return Cotangent(self.cotangents.index(argument))
        return Batch(argument)


@dataclass(frozen=True)
class Joint:
    """A step whose loops are parts, and whose gradients are terms.

    Attributes:
      code: the module, whose main returns the outputs, then the terms.
      program: the block of main.
      signature: its marked arguments and results.
      terms: for each result after the outputs, the parameter that the term is a gradient of.
      original: the step before this change.
    """

    code: ir.Module
    program: Program
    signature: JointSignature
    terms: tuple[Parameter, ...]
    original: ir.Module

    @classmethod
    def of(cls, module: ir.Module, target: Target, cuts: Mapping[int, Sequence[int]]) -> Joint:
        """Prepares a copy of a module.

        Args:
          cuts: for each group of `layer_groups`, the iterations at which a part starts.
        """
        code = clone_module(module)
        main = walk.entry_function(code)
        signature = JointSignature.of(main)
        block = main.regions[0].blocks[0]
        erase_dead(block)
        with code.context, ir.Location.unknown():
            before = Program(block)
            groups = layer_groups(block, made_of_parameters(before, signature))
            late = late_values(before, signature.cotangents)
            for number, at in cuts.items():
                cut_group(groups[number], at, late)
            terms = _write_terms(block, signature)
        erase_dead(block)
        program = Program.of(code, DeviceView.of(code, memory_rules(target)))
        return cls(code, program, signature, tuple(terms), module)

    @property
    def outputs(self) -> int:
        """Returns the number of results that are no terms."""
        return len(self.signature.outputs)

    @functools.cached_property
    def returned(self) -> list[int]:
        """Returns the values that the step returns, outputs first, then terms."""
        terminator = self.program.ops[-1]
        return [self.program.index[value] for value in terminator.operands]

    @functools.cached_property
    def late(self) -> list[bool]:
        """Returns, for each value, whether it depends on a cotangent."""
        return _late(self.program, self.signature.cotangents)

    @functools.cached_property
    def roots(self) -> dict[int, frozenset[Source]]:
        """Returns the values that every stage can compute itself, with the arguments that they
        need.

        These are the arguments, and cheap work on arguments and constants alone, except reductions
        of arguments: a small result of large operands is better sent.
        """
        program = self.program
        found: dict[int, frozenset[Source]] = {
            value: frozenset({self.signature.source(value)})
            for value in range(len(program.block.arguments))
        }
        cheap = frozenset({OpKind.CONSTANT, OpKind.CHEAP, OpKind.REDUCTION})
        for position, kind in enumerate(program.kinds[:-1]):
            operands = program.operands[position]
            if kind not in cheap or any(value not in found for value in operands):
                continue
            sources = frozenset[Source]().union(*(found[value] for value in operands))
            if kind is OpKind.REDUCTION and sources:
                continue
            for value in program.results[position]:
                rows = self.rows.get(value)
                found[value] = sources if rows is None else frozenset({rows})
        return found

    @functools.cached_property
    def rows(self) -> dict[int, Parameter]:
        """Returns the values that are rows of parameters."""
        program, found = self.program, {}
        for position, op in enumerate(program.ops):
            rows = parameter_rows(op, program.block)
            if rows is not None and rows[0] in self.signature.parameters:
                found[program.results[position][0]] = Parameter(*rows)
        return found


def made_of_parameters(program: Program, signature: JointSignature) -> set[ir.Value]:
    """Returns the values of a program that are computed from parameters and constants alone."""
    parameters = set(signature.parameters)
    found = [value in parameters for value in range(len(program.sizes))]
    other = [value not in parameters for value in range(len(program.block.arguments))]
    other += [False] * (len(found) - len(other))
    for operands, results in zip(program.operands, program.results, strict=True):
        for value in results:
            found[value] = any(found[each] for each in operands)
            other[value] = any(other[each] for each in operands)
    return {v for v, *flags in zip(program.values, found, other, strict=False) if flags == [1, 0]}


def late_values(program: Program, cotangents: Sequence[int]) -> list[ir.Value]:
    """Returns the values of a program that depend on a cotangent."""
    late = _late(program, cotangents)
    return [program.values[number] for number, each in enumerate(late) if each]


def _late(program: Program, cotangents: Sequence[int]) -> list[bool]:
    late = [False] * len(program.sizes)
    for number in cotangents:
        late[number] = True
    for operands, results in zip(program.operands, program.results, strict=True):
        if any(late[value] for value in operands):
            for value in results:
                late[value] = True
    return late


def _write_terms(block: ir.Block, signature: JointSignature) -> list[Parameter]:
    """Makes the program return its outputs and the terms of its gradients."""
    terminator = walk.terminator(block)
    returned = [terminator.operands[number] for number in signature.outputs]
    found: list[Parameter] = []
    with ir.InsertionPoint(terminator), terminator.location:
        for number, leaf in zip(signature.gradients, signature.parameters, strict=True):
            for term in terms_of(terminator.operands[number]):
                found.append(term.of(leaf))
                returned.append(term.value)
        ir.Operation.create(terminator.name, operands=returned)
    erase(terminator)
    return found
