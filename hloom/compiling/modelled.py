"""The effect of the passes on memory and work, by hloom's models.

XLA reports the memory of the program that it compiled. The memory without the passes is known where
an attempt compiled the original; elsewhere the memory model gives the ratio, if its prediction of
the compiled program was right.
"""

from __future__ import annotations

from dataclasses import dataclass

from jax.extend.mlir import ir

from hloom.passes.analysis.cost import all_flops
from hloom.passes.analysis.flops import executed_sizes
from hloom.passes.analysis.memory_model.targets import memory_rules
from hloom.passes.analysis.memory_model.tracer import predict
from hloom.passes.framework.target import Target
from hloom.passes.ir import walk
from hloom.policy import is_strict

_TRUSTED = 0.05
"""The largest error of the model for the compiled program at which it is used for the original."""

_ERROR = 1 / 3
"""The largest error that is then expected: at most 28 % was measured, on CPUs and for an H100, of
steps of 12 packages (2026-11-23; `benchmarks/results/log_figures.md` has those of CPUs)."""


@dataclass(frozen=True)
class ModelledProgram:
    """The memory and work of a program by the models.

    Attributes:
      temp_bytes: temporary memory at the peak, on one device.
      flops: floating-point operations of one run, on all devices.
    """

    temp_bytes: int
    flops: float

    @classmethod
    def of(
        cls, module: ir.Module, target: Target, temp_bytes: int | None = None
    ) -> ModelledProgram | None:
        """Models a module whose calls are inlined; None where it cannot be modelled.

        `temp_bytes` is the memory model's figure where it is known already.
        """
        try:
            main = walk.entry_function(module).regions[0].blocks[0]
            sizes = executed_sizes(target.platform)
            # A view of a composite has the composite's name, not the operation's.
            flops = sum(all_flops(view.operation, sizes) for view in main.operations)
            if temp_bytes is None:
                temp_bytes = predict(module, rules=memory_rules(target)).temp_bytes
            return cls(temp_bytes, flops)
        except walk.NoEntryError:
            return None
        except Exception:
            # The figure is only shown: its failure must not keep a program from its passes.
            if is_strict():
                raise
            return None


@dataclass(frozen=True)
class ModelledChange:
    """The models' figures before any pass, and after the last measured pass."""

    before: ModelledProgram
    after: ModelledProgram

    def temp_bytes_before(self, temp_bytes: int) -> int | None:
        """Estimates the original program's temporaries, given XLA's `temp_bytes` after the passes.

        None where the model's prediction of the compiled program is wrong, and where the passes
        changed less than the model's error.
        """
        was, is_ = self.before.temp_bytes, self.after.temp_bytes
        if not is_ or abs(is_ - temp_bytes) > _TRUSTED * temp_bytes:
            return None
        if abs(is_ - was) < _ERROR * was:
            return None
        return round(temp_bytes * was / is_)

    @property
    def added_work(self) -> float | None:
        """Returns the recomputed FLOPs as a share of the program's; None where it has no FLOPs.

        Negative where the passes remove work, e.g. the recomputation of a checkpoint.
        """
        if not self.before.flops:
            return None
        return (self.after.flops - self.before.flops) / self.before.flops
