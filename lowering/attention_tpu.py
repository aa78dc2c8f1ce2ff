"""Lowers attention on TPUs to Pallas' kernels, as JAX itself lowers its splash attention.

Before:

    %o, %stats = stablehlo.composite "hloom.attention" %q, %k, %v

After, where the calls are traced from JAX's own function at these shapes:

    %s = stablehlo.multiply (stablehlo.transpose %q), scale
    %l = stablehlo.custom_call @tpu_custom_call(masks, %s, (stablehlo.transpose %k), …)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from jax.extend.mlir import ir

from hloom.passes.ir import build, moves
from hloom.passes.ir.attention_marks import ATTENTION_GRADIENT, AttentionCall
from hloom.passes.ir.erase import erase
from hloom.passes.ir.values import element_of, shape_of

from .kernel_calls import Choice, Decomposition, Rewrite, Site
from .placement import Placement

Shape = tuple[int, ...]


@dataclass(frozen=True)
class SplashAttention:
    """An attention.

    Attributes:
      queries, keys, values: the shapes. Heads of queries may be a multiple of those of keys.
      element: the type of elements, "bf16" or "f32".
      scale: the factor of the scores; queries are multiplied by it, and rounded to ``element``.
      causal: a query sees no key behind its own position.
      window: it sees so many keys up to its own position; 0 for all.
      seen: the shape of the mask of keys, bool[1 or batch, keys]; None without one. A query of a
        sequence whose keys are all masked has no result that is defined.
    """

    queries: Shape
    keys: Shape
    values: Shape
    element: str
    scale: float
    causal: bool = False
    window: int = 0
    seen: Shape | None = None


_WARNING = (
    "attention is computed without a kernel, with its weights in memory, since {}. Without "
    "'attention' the program takes no more memory. This is a fault of hloom or of this version of "
    "JAX: please report it."
)


def choose_tpu(site: Site, placement: Placement) -> Choice:
    """Returns the kernels' calls, or what they compute where none can be made."""
    call = AttentionCall.of(site.mark)
    if call.emulated:
        return Decomposition("what the kernel computes, as asked for")
    if not site.is_manual:
        return Decomposition("the partitioner cannot divide Pallas' kernels")
    if call.has_bias and not call.masks_keys:
        return Decomposition("Pallas' kernels add no bias")
    if site.trace is None:
        return Decomposition("nothing traces Pallas' kernels here")
    is_gradient = site.name == ATTENTION_GRADIENT
    try:
        text = site.trace(attention_of(site.mark), gradient=is_gradient)
    except Exception as error:
        why = f"JAX's kernels do not take it: {error}"
        return Decomposition(why, _WARNING.format(why))
    name = "gradient of splash attention" if is_gradient else "splash attention"
    return Rewrite(f"Pallas' {name}", partial(write, text))


def attention_of(mark: ir.Operation) -> SplashAttention:
    """Returns the attention that a mark stands for, or whose gradient it does."""
    call = AttentionCall.of(mark)
    queries, keys, values = (shape_of(each) for each in list(mark.operands)[:3])
    seen = None
    if call.has_bias:
        batch, _, _, length = shape_of(mark.operands[3])
        seen = batch, length
    return SplashAttention(
        tuple(queries),
        tuple(keys),
        tuple(values),
        str(element_of(mark.operands[0])),
        call.scale,
        call.causal,
        call.window,
        seen,
    )


def write(text: str, mark: ir.Operation) -> Sequence[ir.Value]:
    """Writes what a module's main function does with a mark's operands in front of the mark;
    returns its results. A bias becomes a mask of keys."""
    operands = list(mark.operands)
    if AttentionCall.of(mark).has_bias:
        with ir.InsertionPoint(mark):
            operands[3] = _seen(operands[3])
    traced = ir.Module.parse(text, context=mark.context)
    [function] = (view.operation for view in traced.body.operations)
    main = function.clone(ip=False)
    [block] = main.regions[0].blocks
    for argument, operand in zip(block.arguments, operands, strict=True):
        argument.replace_all_uses_with(operand)
    *body, terminator = (view.operation for view in block.operations)
    moves.move_into(mark, body)
    results = list(terminator.operands)
    erase(main)
    return results


def _seen(bias: ir.Value) -> ir.Value:
    """Returns which keys a bias of [1 or batch, 1, 1, keys] does not mask."""
    batch, _, _, keys = shape_of(bias)
    rows = build.reshaped(bias, [batch, keys])
    return build.compare(rows, build.zeros(rows.type), "EQ")
