"""One module of a corpus through every pass, and what has to hold of it then."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jax.extend.mlir import ir

from hloom._jax.modules import make_context
from hloom.passes.framework import registry
from hloom.passes.framework.errors import PassError, reason_of
from hloom.passes.framework.feedback import Attempt
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom.passes.ir.clone import clone_module
from hloom_tools.opt.job import dry_run, lower_for

_OTHER_SPECS = (
    "default",
    "cse,inline",
    "free-constants{min_bytes=1}",
    "unroll{loops=all trips=16}",
    "barriers{order=barriers}",
    "capture{min_ops=1}",
    "remat{min_bytes=0}",
    "remat{budget=50%}",
    "remat{budget=1KiB}",
    "remat{budget=1B min_bytes=0}",
    "remat{budget=fit}",
    "remat{min_bytes=0},unroll{loops=all},barriers,capture{min_ops=1}",
)

_IDEMPOTENT = ("inline", "cse", "free-constants", "remat{min_bytes=0}")
"""What finds nothing to do in its own result; what runs before it may."""

_CHECK = re.compile(
    rb"^([ \t]*)check\.(\w+?) (%[\w#]+), (%[\w#]+)[^:\n]* : "
    rb"(tensor<[^\n]*?>)(, tensor<.*>)?[ \t]*$",
    re.MULTILINE,
)
_CHECK_OF_CONSTANT = re.compile(
    rb"^([ \t]*)check\.(\w+?)_const (%[\w#]+), (dense<.*?>)[^>]*? : (tensor<[^\n]*>)[ \t]*$",
    re.MULTILINE | re.DOTALL,
)


@dataclasses.dataclass(frozen=True)
class Failure:
    """Something that does not hold of a module.

    Attributes:
      kind: "plan", "apply", "verify", … where a pass failed, else what was not so.
      spec: the passes that ran.
      target: the device they planned for.
      message: one line.
    """

    kind: str
    spec: str
    target: str
    message: str


@dataclasses.dataclass(frozen=True)
class Result:
    """The text that some passes made of a module."""

    spec: str
    target: str
    text: str


def specs() -> tuple[str, ...]:
    """What is run: each pass alone, its own example, and options that make it do more."""
    passes = registry.all_passes()
    every = [*(each.name for each in passes), *(each.example for each in passes), *_OTHER_SPECS]
    # Some are the same by their defaults.
    return tuple({Pipeline.parse(spec).steps(): spec for spec in every}.values())


def with_checks_as_calls(text: bytes) -> bytes:
    """The text with operations of StableHLO's test dialect `check` as custom calls.

    jaxlib has no such dialect; StableHLO's newer tests write these calls themselves.
    """
    number = 0

    def of_constant(found: re.Match[bytes]) -> bytes:
        nonlocal number
        number += 1
        space, name, value, constant, type_ = found.groups()
        expected = b"%%hloom_expected_%d" % number
        return b"%s%s = stablehlo.constant %s : %s\n%scheck.%s %s, %s : %s" % (
            space, expected, constant, type_, space, name, value, expected, type_
        )  # fmt: skip

    def call(found: re.Match[bytes]) -> bytes:
        space, name, value, expected, type_, other_type = found.groups()
        types = type_ + (other_type or b", " + type_)
        called = b"%sstablehlo.custom_call @check.%s(%s, %s) " % (space, name, value, expected)
        return called + b"{has_side_effect = true} : (%s) -> ()" % types

    return _CHECK.sub(call, _CHECK_OF_CONSTANT.sub(of_constant, text))


def return_checked(module: ir.Module) -> None:
    """Has each public function without results return what its checks read.

    There would be nothing to compare, and to the passes nothing would be a result.
    """
    for function in walk.functions(module).values():
        if len(list(function.regions[0].blocks)) != 1 or not walk.is_public(function):
            continue
        terminator = walk.terminator(function.regions[0].blocks[0])
        checked = [
            op.operands[0]
            for op in function.regions[0].blocks[0].operations
            if is_check(op.operation) and len(op.operands)
        ]
        if terminator.name != "func.return" or len(terminator.operands) or not checked:
            continue
        with ir.InsertionPoint(terminator):
            ir.Operation.create("func.return", operands=checked, loc=terminator.location)
        terminator.erase()
        type_ = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
        changed = ir.FunctionType.get(type_.inputs, [value.type for value in checked])
        function.attributes["function_type"] = ir.TypeAttr.get(changed)


def is_check(op: ir.Operation) -> bool:
    """Whether it is one of the comparisons of StableHLO's own tests."""
    if op.name != "stablehlo.custom_call":
        return False
    target = ir.StringAttr(op.attributes["call_target_name"]).value
    return target.startswith("check.")


class Trial:
    """Runs specs on a module.

    Attributes:
      runs: pipelines that ran, second runs included.
      failures: what went wrong.
      results: each text that differs from the module's own, once.
    """

    def __init__(self, module: ir.Module, stage: Callable[[str], None]) -> None:
        self.module, self._stage = module, stage
        self.original, self.plain = _text(module), plain_text(module)
        self.runs = 0
        self.failures: list[Failure] = []
        self.results: dict[str, Result] = {}
        self._parsed: set[str] = set()

    def run(self, wanted: Sequence[str], targets: Sequence[Target]) -> None:
        """Runs each spec for each target, twice, and once more where that must do nothing."""
        for spec, target in ((spec, target) for spec in wanted for target in targets):
            self._stage(f"{spec} for {target.name}")
            for kind, message in self._one(spec, target):
                self.failures.append(Failure(kind, spec, target.name, message))
        if _text(self.module) != self.original:
            self.failures.append(Failure("edited", "", "", "planning edited what it was to read"))

    def _one(self, spec: str, target: Target) -> Iterator[tuple[str, str]]:
        try:
            pipeline = Pipeline.parse(spec)
            attempts = dry_run(pipeline, self.module, target).attempts
            module, plans = self._transform(self.module, pipeline, target, attempts)
        except PassError as error:
            yield error.phase, str(error)
            return
        except Exception as error:
            yield "exception", reason_of(error)
            return
        text = _text(module)
        if all(empty for empty, _ in plans) and text != self.original:
            yield "empty", "the plan is empty and the module changed"
        again, plans_again = self._transform(self.module, pipeline, target, attempts)
        if _text(again) != text or plans_again != plans:
            yield "differs", "a second run made another plan or module"
        if text == self.original:
            return
        if text not in self._parsed:
            self._parsed.add(text)
            wrong = _wrong_text(text)
            # Of some loops MLIR's own text does not parse back.
            if wrong is not None and _wrong_text(self.original) is None:
                yield "text", wrong
        if spec in _IDEMPOTENT:
            _, plans_for_result = self._transform(module, pipeline, target, ())
            if not plans_for_result[-1][0]:
                yield "idempotent", "the pass finds something to do in its own result"
        plain = plain_text(module)
        if plain != self.plain:
            self.results.setdefault(plain, Result(spec, target.name, plain))
        if "hloom." in text:
            try:
                lower_for(target, module)
            except PassError as error:
                yield "lowering", str(error)

    def _transform(
        self,
        module: ir.Module,
        pipeline: Pipeline,
        target: Target,
        attempts: Sequence[Attempt[Any]],
    ) -> tuple[ir.Module, list[tuple[bool, str]]]:
        clone = clone_module(module)
        done = pipeline.run(clone, target=target, attempts=attempts)
        self.runs += 1
        return clone, [(run.empty, json.dumps(run.plan, sort_keys=True)) for run in done.runs]


def _wrong_text(text: str) -> str | None:
    """What is wrong with a module's text; None where it parses back to itself."""
    context = make_context()
    context.enable_multithreading(False)
    try:
        return None if _text(ir.Module.parse(text, context)) == text else "another module"
    except ir.MLIRError as error:
        return reason_of(error)


def plain_text(module: ir.Module) -> str:
    """The module without locations."""
    return str(module.operation.get_asm(enable_debug_info=False))


def _text(module: ir.Module) -> str:
    return str(module.operation.get_asm(enable_debug_info=True))
