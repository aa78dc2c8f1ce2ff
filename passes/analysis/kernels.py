"""The kernels of custom calls and of marks: whether they are pure, and their work.

A call may be recomputed where its target is known to be pure, here or by `hloom.declare_kernel`,
and the call itself states nothing else: no effect, no token, no operand that it overwrites, no
other device that it accesses. Its work is its own estimate where it carries one.

Source: `jax/_src/tpu_custom_call.py`, `jax/_src/pallas`, `jax/experimental/mosaic/gpu/core.py`,
`jax/_src/cudnn/fused_attention_stablehlo.py` (0.10.2 and 0.12), and the registrations of
TransformerEngine's `transformer_engine/jax` (2.9). cuDNN's attention with dropout draws from a
state of its own, which every run advances (XLA's `CudnnGraph`): it is not pure.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from jax.extend.mlir import ir

from ..ir import walk
from ..ir.attention_marks import ATTENTION_GRADIENT, AttentionCall
from ..ir.collectives import described, says_that_it_meets_peers
from ..ir.custom_calls import OWN, TYPED_ATTRIBUTES, aliased_operands, target_of
from ..ir.marks import mark_name

Shapes = tuple[tuple[int, ...], ...]
FlopsOfShapes = Callable[[Shapes, Shapes], float]


class KernelError(ValueError):
    """A declared kernel's work cannot be computed: the text has target, error, and remedy."""


@dataclass(frozen=True)
class KernelWork:
    """The work of one run of a kernel.

    Attributes:
      flops: FLOPs of matrix units; a multiply-add counts as two.
      vector_flops: FLOPs outside of them.
      bytes: bytes read and written; None: its operands and results.
    """

    flops: float = 0.0
    vector_flops: float = 0.0
    bytes: float | None = None


@dataclass(frozen=True)
class DeclaredKernel:
    """The declaration of a target; its attributes are the arguments of `declare`."""

    pure: bool
    flops: float | FlopsOfShapes | None
    bytes: float | None


_declared: dict[str, DeclaredKernel] = {}


def declare(
    target: str,
    *,
    pure: bool,
    flops: float | FlopsOfShapes | None = None,
    bytes: float | None = None,
) -> None:
    """Declares the kernels of a custom call's target, in this process from now on.

    A program calls `hloom.declare_kernel("my_attention", pure=True, flops=4e9)` before it compiles
    anything that calls the target. A plan then may recompute a pure kernel where that pays, at the
    price of its work. The declaration overrides hloom's own facts of a target, but not those of a
    call: one with an effect, a token or an operand that it overwrites, or that accesses other
    devices, is never recomputed.

    Args:
      target: the custom call's target, e.g. the name passed to `jax.ffi.ffi_call`.
      pure: whether equal operands give equal results, and a run does nothing else. A kernel that
        draws random numbers from a state of its own is not pure.
      flops: FLOPs of one call, a multiply-add as two: a number, or a function of the shapes of its
        operands and of its results, as the call has them, e.g.
        ``lambda operands, results: 4 * math.prod(operands[0]) * operands[1][1]``. None: the most
        that attention, or a product, of such operands takes.
      bytes: bytes that one call reads and writes. None: its operands and results.

    Raises TypeError or ValueError where an argument is none of these, and ValueError where the
    target is declared already, otherwise, or is one of hloom's own.
    """
    if not isinstance(target, str):
        raise TypeError(f"declare_kernel wants a custom call's target, a string, got {target!r}")
    if not target or target.startswith(OWN):
        raise ValueError(
            f"declare_kernel wants the target of a custom call, not one of hloom's: got {target!r}"
        )
    if not isinstance(pure, bool):
        raise TypeError(f"declare_kernel({target!r}) wants pure=True or pure=False, got {pure!r}")
    if not callable(flops):
        _check_count(target, "flops", flops, "a number, or a function of shapes")
    _check_count(target, "bytes", bytes, "a number")
    kernel = DeclaredKernel(pure, flops, bytes)
    if _declared.setdefault(target, kernel) != kernel:
        raise ValueError(f"@{target} is declared already, with {_declared[target]}")


@contextmanager
def declared(target: str, **kernel: Any) -> Iterator[None]:
    """Declares a target inside the block, in all threads, as `declare` does. For tests."""
    declare(target, **kernel)
    try:
        yield
    finally:
        del _declared[target]


def declarations() -> str | None:
    """Returns this process's declarations, as text; None where one has a function of shapes."""
    if any(callable(kernel.flops) for kernel in _declared.values()):
        return None
    return "".join(f"{target}: {kernel}\n" for target, kernel in sorted(_declared.items()))


def _check_count(target: str, name: str, count: object, wanted: str) -> None:
    """Raises where a count is neither None nor a number that can be one."""
    if count is None:
        return
    if isinstance(count, bool) or not isinstance(count, int | float):
        raise TypeError(f"declare_kernel({target!r}) wants {name} to be {wanted}, got {count!r}")
    if not 0 <= count < math.inf:
        raise ValueError(
            f"declare_kernel({target!r}) wants {name} to be finite and not negative, got {count!r}"
        )


def is_pure_kernel(call: ir.Operation) -> bool:
    """Whether a custom call only computes its results from its operands, equal ones each time."""
    target = _target(call)
    if target is None:
        return False
    kernel, given = _known(target), _declared.get(target)
    if given is None and kernel is None:
        return False
    if given is not None and not given.pure:
        return False
    if _has_effect(call) or says_that_it_meets_peers(call):
        return False
    if kernel is None:
        return True
    return not kernel.meets_peers(call) and (given is not None or kernel.pure(call))


def work_of(call: ir.Operation) -> KernelWork | None:
    """Returns the work of one run of a custom call's kernel; None for an unknown target.

    Raises KernelError where a declaration's function of shapes returns no number.
    """
    target = _target(call)
    if target is None:
        return None
    kernel, given = _known(target), _declared.get(target)
    if given is not None and given.flops is not None:
        return KernelWork(flops=_declared_flops(call, given.flops), bytes=given.bytes)
    if given is None and kernel is None:
        return None
    found = at_most(call) if kernel is None else kernel.work(call)
    if given is None or given.bytes is None:
        return found
    return KernelWork(found.flops, found.vector_flops, given.bytes)


def _target(call: ir.Operation) -> str | None:
    """Returns the target of a custom call, or the name of a mark."""
    return target_of(call) or mark_name(call)


def _declared_flops(call: ir.Operation, flops: float | FlopsOfShapes) -> float:
    if not callable(flops):
        return float(flops)
    operands, results = _shapes(call.operands), _shapes(call.results)
    where = f"the flops declared of {described(call)}, for operands {operands}"
    try:
        found = flops(operands, results)
    except Exception as error:
        raise KernelError(f"{where}: {type(error).__name__}: {error}") from error
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < math.inf:
        raise KernelError(f"{where}: wants a number, finite and not negative, got {found!r}")
    return float(found)


def at_most(call: ir.Operation) -> KernelWork:
    """Returns a bound for kernels that do not state their work.

    Attention without a mask takes 4 FLOPs for each element of its queries and each position of its
    keys, a product of matrices 2 for each element and the axis it sums: no more than 4 for each
    element of the largest operand or result, times the longest axis of any.
    """
    shapes = _shapes(call.operands) + _shapes(call.results)
    largest = max(map(math.prod, shapes), default=0)
    return KernelWork(flops=4.0 * largest * max((max(s, default=1) for s in shapes), default=1))


def _shapes(values: Sequence[ir.Value]) -> Shapes:
    """Returns the shapes of the values that have static ones."""
    types = [value.type for value in values]
    return tuple(
        tuple(type_.shape)
        for type_ in types
        if isinstance(type_, ir.RankedTensorType) and type_.has_static_shape
    )


# Facts that a call states.


def _has_effect(call: ir.Operation) -> bool:
    """Whether the call states an effect, or has an operand or a result that is no tensor.

    True also for a call that overwrites an operand: the operand may be needed again, and no plan
    counts the copy that XLA would make then.
    """
    attributes = walk.readable_attributes(call)
    effect, inner = attributes.get("has_side_effect"), attributes.get("called_computations")
    if isinstance(effect, ir.BoolAttr) and effect.value:
        return True
    if isinstance(inner, ir.ArrayAttr) and len(inner):
        return True
    tensors = all(
        isinstance(value.type, ir.RankedTensorType) for value in (*call.operands, *call.results)
    )
    return not tensors or bool(aliased_operands(call))


def _typed(call: ir.Operation) -> dict[str, ir.Attribute]:
    """Returns the attributes of a typed FFI handler, nested ones too."""
    attributes = walk.readable_attributes(call)
    found: dict[str, ir.Attribute] = {}
    waiting = [attributes.get(TYPED_ATTRIBUTES), attributes.get("backend_config")]
    while waiting:
        each = waiting.pop()
        if isinstance(each, ir.DictAttr):
            for named in (each[number] for number in range(len(each))):
                found[named.name] = named.attr
                waiting.append(named.attr)
    return found


def _json(call: ir.Operation, *names: str) -> dict[str, Any]:
    """Returns a part of the JSON that configures a legacy call; empty where there is none."""
    config = walk.readable_attributes(call).get("backend_config")
    part = _parsed(config.value_bytes) if isinstance(config, ir.StringAttr) else None
    for name in names:
        part = part.get(name) if isinstance(part, dict) else None
    return part if isinstance(part, dict) else {}


def _count(part: dict[str, Any], name: str) -> float:
    """Returns a number of a part of the JSON; 0 where it has none."""
    found = part.get(name)
    return float(found) if isinstance(found, int | float) and 0 <= found < math.inf else 0.0


@functools.lru_cache(maxsize=256)
def _parsed(config: bytes) -> object:
    """Returns the parsed configuration; cached, since it contains the code of a TPU's kernel."""
    try:
        return json.loads(config)
    except ValueError:
        return None


# Facts of targets.


def _always(call: ir.Operation) -> bool:
    return True


def _never(call: ir.Operation) -> bool:
    return False


@dataclass(frozen=True)
class _Kernel:
    """The kernels of some targets.

    Attributes:
      targets: the names of the targets, a pattern.
      pure: whether a call, without effects and without peers, is pure.
      meets_peers: whether a call accesses other devices.
      work: the work of a run.
    """

    targets: re.Pattern[str]
    pure: Callable[[ir.Operation], bool] = _always
    meets_peers: Callable[[ir.Operation], bool] = _never
    work: Callable[[ir.Operation], KernelWork] = at_most


@functools.cache
def _known(target: str) -> _Kernel | None:
    return next((each for each in _KERNELS if each.targets.fullmatch(target)), None)


_TRANSCENDENTAL_FLOPS = 8
"""FLOPs of an exponential, as `ir/ops` counts them."""


_TPU = "custom_call_config"


def _estimate(call: ir.Operation) -> dict[str, Any]:
    """Returns the `pl.CostEstimate` that a call carries, which is that of one device; empty without
    one.

    Calls for TPUs do, and from jax 0.12 on those of Mosaic GPU; Triton's never do.
    """
    text = _typed(call).get("cost_estimate_json")
    found = _parsed(text.value_bytes) if isinstance(text, ir.StringAttr) else None
    return found if isinstance(found, dict) else _json(call, _TPU, "cost_estimate")


def _estimated(call: ir.Operation) -> KernelWork:
    """Returns the work that a Pallas kernel states."""
    estimate = _estimate(call)
    if not estimate:
        return at_most(call)
    return KernelWork(
        flops=_count(estimate, "flops"),
        vector_flops=_TRANSCENDENTAL_FLOPS * _count(estimate, "transcendentals"),
        bytes=_count(estimate, "bytes_accessed") or None,
    )


def _tpu_meets_peers(call: ir.Operation) -> bool:
    config = _json(call, _TPU)
    # A call whose configuration cannot be read may be of any kind.
    said = not config or "collective_id" in config or "has_communication" in config
    return said or bool(_estimate(call).get("remote_bytes_transferred"))


_MOSAIC_PEERS = frozenset({"xla_replica_ids", "multimem_parameters", "symmetric_memory_parameters"})
_MOSAIC_FLAGS = ("use_custom_barrier", "uses_xla_collective_metadata")


def _mosaic_meets_peers(call: ir.Operation) -> bool:
    """Whether a kernel calls NVSHMEM, which only its code shows."""
    config = _typed(call)
    code, flags = config.get("module"), [config.get(name) for name in _MOSAIC_FLAGS]
    if not isinstance(code, ir.StringAttr) or not _MOSAIC_PEERS.isdisjoint(config):
        return True
    said = any(not isinstance(flag, ir.BoolAttr) or flag.value for flag in flags if flag)
    sent = _estimate(call).get("remote_bytes_transferred")
    return said or bool(sent) or b"nvshmem" in code.value_bytes


_CUDNN = "cudnn_fmha_backend_config"


def _attention_without_dropout(call: ir.Operation) -> bool:
    rate = _json(call, _CUDNN).get("dropout_rate")
    return isinstance(rate, int | float) and rate == 0


_BACKWARD_PRODUCTS = 2.5
"""The number of products in attention's gradient for each of attention's own: five for two."""


def attention_work(
    scores: Sequence[int], size: int, *, causal: bool, window: float = 0, is_gradient: bool = False
) -> KernelWork:
    """Returns the work of the scores, then of their product with the values; half where causal.

    Args:
      scores: batch, heads, queries, keys.
      size: the elements of a head.
      causal: a query sees no key behind its own position.
      window: it sees so many keys up to its own position; 0 for all.
      is_gradient: the work is the gradient's.
    """
    batch, heads, queries, keys = scores
    read = min(float(keys), window or math.inf)
    if causal and not window:
        read /= 2
    count = batch * heads * queries * read
    products = _BACKWARD_PRODUCTS if is_gradient else 1.0
    return KernelWork(4 * count * size * products, _TRANSCENDENTAL_FLOPS * count)


def _attention(call: ir.Operation) -> KernelWork:
    config = _json(call, _CUDNN)
    lengths = _json(call, _CUDNN, "intermediate_tensor_shape").get("dimensions")
    shapes = _shapes(call.operands)
    if not (isinstance(lengths, list) and len(lengths) == 4 and shapes and len(shapes[0]) == 4):
        return at_most(call)
    try:
        scores = [int(each) for each in lengths]
    except (TypeError, ValueError):
        return at_most(call)
    return attention_work(
        scores,
        shapes[0][3],
        causal="CAUSAL" in str(config.get("mask_type")),
        window=_count(config, "sliding_window_length"),
        is_gradient="Backward" in (target_of(call) or ""),
    )


def _marked_attention(mark: ir.Operation) -> KernelWork:
    """Returns the work of a mark of attention, as that of cuDNN's call."""
    call, shapes = AttentionCall.of(mark), _shapes(mark.operands)
    (batch, queries, heads, size), keys = shapes[0], shapes[1][1]
    return attention_work(
        (batch, heads, queries, keys),
        size,
        causal=call.causal,
        window=call.window,
        is_gradient=mark_name(mark) == ATTENTION_GRADIENT,
    )


def _is_collective_product(call: ir.Operation) -> bool:
    kind = _typed(call).get("collective_op")
    return kind is not None and not (isinstance(kind, ir.IntegerAttr) and kind.value == 0)


_STREAMED_FLOPS = 16


def _streamed(call: ir.Operation) -> KernelWork:
    """Returns the work of a few passes over the elements: norms, activations, conversions."""
    shapes = _shapes(call.operands) + _shapes(call.results)
    return KernelWork(vector_flops=float(_STREAMED_FLOPS * max(map(math.prod, shapes), default=0)))


_KERNELS = (
    _Kernel(re.compile("tpu_custom_call"), meets_peers=_tpu_meets_peers, work=_estimated),
    _Kernel(re.compile(r"__gpu\$xla\.gpu\.triton|triton_kernel_call(_ffi)?")),
    _Kernel(re.compile("mosaic_gpu_v2"), meets_peers=_mosaic_meets_peers, work=_estimated),
    _Kernel(re.compile(r"__cudnn\$fmha\w+"), pure=_attention_without_dropout, work=_attention),
    _Kernel(re.compile(r"hloom\.attention(_gradient)?"), work=_marked_attention),
    _Kernel(re.compile(r"te_fused_attn_(forward|backward)_ffi")),
    _Kernel(re.compile(r"te_gemm(_v2)?_ffi"), meets_peers=_is_collective_product),
    _Kernel(
        re.compile(
            r"te_(act_lu|dact_lu|dact_dbias_quantize|dbias_quantize|dequantize"
            r"|scaled_(masked_|upper_triang_masked_)?softmax_(forward|backward)"
            r"|norm_(forward|backward))_ffi"
        ),
        work=_streamed,
    ),
)
"""The kernels by target. A target that is neither here nor declared is never recomputed."""
