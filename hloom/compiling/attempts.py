"""Plan, compile, read XLA's figures, plan again: the loop of a measured pass."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from typing import TypeVar

from jax.extend.mlir import ir

from hloom._jax import MemoryFigures
from hloom.compiling.compilation import Compilation, Compiled
from hloom.compiling.cross_process import Agreement
from hloom.dumps.collect.observer import DumpObserver
from hloom.passes.framework.base import Attempt, MeasuredPass, Target
from hloom.passes.framework.errors import PassError, reason_of
from hloom.record import CompileAttempt

_T = TypeVar("_T")


class Attempts:
    """The attempts of one program, of which the best is kept.

    Attributes:
      best: the executable to use.
      all: every attempt, in order, for the record.
      best_index: which of `all` is the best.
      observers: what there is to dump of each.
    """

    def __init__(
        self,
        compilation: Compilation,
        driver: MeasuredPass,
        agreement: Agreement,
        first: Compiled,
    ) -> None:
        assert first.variant is not None
        self.best = first
        self._first = first.variant.module
        self.best_index = 0
        self.all: list[CompileAttempt] = []
        self.observers: list[DumpObserver] = []
        self._compilation = compilation
        self._driver = driver
        self._agreement = agreement
        self._measured: list[Attempt] = []
        self._tried: set[bytes] = set()

    def run(self) -> None:
        """Makes attempts as long as the pass wants more; in strict mode raises what fails."""
        try:
            if self._add(self.best):
                while self._try_again():
                    pass
            self._complain()
        except PassError as failure:
            self._compilation.stop_trying(failure)

    @property
    def _target(self) -> Target:
        return self._compilation.variants.target

    def _try_again(self) -> bool:
        """Makes one more attempt; False where there is none to make."""
        driver, attempts = self._driver, tuple(self._measured)
        if len(attempts) >= driver.compiles:
            return False
        if not self._ask(lambda: driver.wants_another(attempts, self._target)):
            return False
        if not self._tried:
            self._tried.add(_digest(self._first))
        variant = self._compilation.variants.make(attempts)
        digest = _digest(variant.module)
        if digest in self._tried:
            return False
        self._tried.add(digest)
        try:
            compiled = self._compilation.compile(variant)
        except Exception as error:
            raise PassError(str(self._compilation.pipeline), "compile", reason_of(error)) from error
        return self._add(compiled)

    def _add(self, compiled: Compiled) -> bool:
        """Counts an attempt in; False where its backend does not tell what it takes."""
        assert compiled.variant is not None
        plan = compiled.variant.plan
        attempt = self._measure(plan, compiled.figures)
        self.observers.append(compiled.variant.observer)
        self.all.append(
            CompileAttempt(
                plan=plan,
                predicted_step_bytes=_number(plan, "predicted_step_bytes"),
                added_flops=_number(plan, "added_flops"),
                step_bytes=None if attempt is None else attempt.step_bytes,
                temp_bytes=None if attempt is None else attempt.temp_bytes,
                compile_s=compiled.compile_s,
                cache_hit=compiled.cache_hit,
            )
        )
        if attempt is None:
            return False
        self._measured.append(attempt)
        measured = tuple(self._measured)
        index = self._ask(lambda: self._driver.best(measured, self._target))
        if index == len(measured) - 1:
            # What was the best until now is dropped, and the memory that it holds with it.
            self.best, self.best_index = compiled, index
        return True

    def _measure(self, plan: dict[str, object], figures: MemoryFigures) -> Attempt | None:
        mine = (
            figures.argument_bytes, figures.output_bytes, figures.alias_bytes, figures.temp_bytes
        )  # fmt: skip
        known = [each for each in mine if each is not None]
        if len(known) < len(mine):
            return None
        return Attempt(plan, *self._ask(lambda: self._agreement.largest(known)))

    def _complain(self) -> None:
        measured, variant = tuple(self._measured), self.best.variant
        assert variant is not None
        complaint = self._ask(
            lambda: self._driver.complaint(
                measured, self.best_index, self._target, lambda: variant.module
            )
        )
        if complaint is not None:
            failure = PassError(self._driver.name, "hold", complaint.text)
            self._compilation.complain(failure, complaint.topic)

    def _ask(self, question: Callable[[], _T]) -> _T:
        try:
            return question()
        except Exception as error:
            raise PassError(self._driver.name, "measure", reason_of(error)) from error


def _digest(module: ir.Module) -> bytes:
    bytecode = io.BytesIO()
    module.operation.write_bytecode(bytecode)
    return hashlib.sha256(bytecode.getbuffer()).digest()


def _number(plan: dict[str, object], name: str) -> int | None:
    value = plan.get(name)
    return int(value) if isinstance(value, int | float) else None
