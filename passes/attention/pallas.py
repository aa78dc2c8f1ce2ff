"""The limits of JAX's attention for TPUs: splash attention, kernels of Pallas.

Its masks are causal, a window, or one of keys that holds for all queries and heads; it adds no
bias. Source: `jax/experimental/pallas/ops/tpu/splash_attention` of jax 0.10.2 and 0.12.
"""

from __future__ import annotations

from ..analysis.memory_model.tiles import LANES
from ..analysis.points.evaluator import Scope
from ..analysis.points.operations import How, is_of_booleans, is_of_floats
from ..framework.errors import NotPossibleError
from ..ir import walk
from .products import ForwardRead
from .reader import Logits
from .site import FusedKernel

_LARGEST_HEAD = 512
"""The largest head that was compiled for a TPU, a v5p; by then a block is as large as its share of
the core's memory allows."""


def check(
    kernel: FusedKernel, forward: ForwardRead, *, queries: int, heads: tuple[int, int]
) -> None:
    """Raises NotPossibleError where the kernels do not take an attention.

    Args:
      kernel: what is asked of them.
      forward: the attention.
      queries: the number of queries.
      heads: the elements of a head of queries, and of values.
    """
    keys = kernel.axes.sizes[kernel.axes.key]
    if queries % LANES or keys % LANES:
        raise NotPossibleError(
            f"{queries} queries of {keys} keys: Pallas' kernels take multiples of {LANES}"
        )
    if max(heads) > _LARGEST_HEAD:
        raise NotPossibleError(
            f"heads of {max(heads)} elements: Pallas' kernels take up to {_LARGEST_HEAD}"
        )
    if kernel.element == "f32":
        for op in (forward.scores, forward.weights.product):
            told = walk.readable_attributes(op)
            if "HIGH" in str(told.get("precision_config")) or "algorithm" in told:
                raise NotPossibleError("its products of float32 have more than default precision")


def check_mask_of_keys(forward: ForwardRead, logits: Logits, scope: Scope) -> None:
    """Raises NotPossibleError where a bias is no mask of keys, equal for all queries and heads."""
    axes = forward.axes
    if not {*logits.bias_axes} <= {*axes.batch, axes.key}:
        raise NotPossibleError("its mask or bias differs between queries or heads")
    if logits.bias_numbers != (0.0,):
        raise NotPossibleError("Pallas' kernels add no bias")
    if _reads_integers(forward, scope):
        raise NotPossibleError("its mask is computed with integers, which may be any")


def _reads_integers(forward: ForwardRead, scope: Scope) -> bool:
    """Whether logits depend on integers by more than comparisons: one other than 0 and 1, which
    stand for all integers where values are evaluated, would be a bias."""
    scores = scope.number(forward.scores.results[0])
    seen: set[int] = set()
    waiting = [forward.logits]
    while waiting:
        value = scope.resolve(waiting.pop())
        number, made = scope.number(value), scope.made_by(value)
        if number in seen or number == scores or made is None:
            continue
        seen.add(number)
        op, kind = made
        if kind is How.CONSTANT or op.name == "stablehlo.compare":
            continue
        source = op.operands[0] if op.operands else value
        if not is_of_floats(source) and not is_of_booleans(source) and is_of_floats(value):
            return True
        waiting += op.operands
    return False
