"""The table of operations: exactly one row for each of StableHLO, CHLO, sdy and func.

A new operation goes into the group of similar ones; a new column is a field of `op_facts.OpFacts`,
set for a group or for single rows. tests/passes/ir/test_ops.py requires a row for every operation
that jaxlib registers, and no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .op_facts import UNKNOWN, BufferUse, Category, OpFacts, OpKind, Regions, Traffic

BARRIER = "stablehlo.optimization_barrier"
"""The compiler's; that of devices is a mark (`marks.BARRIER`)."""

_Rows = Iterator[tuple[str, OpFacts]]


def facts_of(name: str) -> OpFacts:
    """Returns the facts of an operation by name, e.g. "stablehlo.add"; `UNKNOWN` without a row."""
    return _TABLE.get(name, UNKNOWN)


def names() -> frozenset[str]:
    """Returns the names of the operations that have a row."""
    return frozenset(_TABLE)


def buffer_use_of(name: str, results: int) -> BufferUse:
    """Returns how the operands and this number of results of an operation use memory."""
    use = facts_of(name).use
    # What XLA fuses has one result.
    fused = BufferUse.FUSED, BufferUse.ELEMENTWISE
    return BufferUse.WHOLE if use in fused and results != 1 else use


def _rows(names: str, category: Category, *, dialect: str = "stablehlo", **facts: Any) -> _Rows:
    """Yields these facts for each of the names."""
    row = OpFacts(category, **facts)
    for name in names.split():
        yield f"{dialect}.{name}", row


def _elementwise(
    names: str, flops: int, use: BufferUse = BufferUse.ELEMENTWISE, **facts: Any
) -> _Rows:
    """Divisions and roots (4 FLOPs) are a special-function instruction with a correction or two,
    exponentials (8) the same with a range reduction, the others polynomials."""
    return _fused(names, Category.ELEMENTWISE, flops=flops, use=use, **facts)


def _heavy(names: str, flops: int, **facts: Any) -> _Rows:
    """Returns rows of work whose result XLA keeps rather than recomputing it for each reader."""
    return _elementwise(names, flops, BufferUse.HEAVY, **facts)


def _light(names: str, flops: int = 1) -> _Rows:
    return _elementwise(names, flops, light=True)


def _movement(name: str, use: BufferUse = BufferUse.FUSED, *, light: bool = True) -> _Rows:
    return _fused(name, Category.MOVEMENT, flops=0, use=use, light=light)


def _fused(names: str, category: Category, **facts: Any) -> _Rows:
    return _rows(names, category, kind=OpKind.CHEAP, traffic=Traffic.FUSED, **facts)


def _indexed(names: str, use: BufferUse, traffic: Traffic, **facts: Any) -> _Rows:
    return _rows(names, Category.INDEXED, kind=OpKind.EXPENSIVE, use=use, traffic=traffic, **facts)


def _kernel(
    names: str,
    flops: int | None,
    category: Category = Category.NUMERIC,
    kind: OpKind = OpKind.EXPENSIVE,
    **facts: Any,
) -> _Rows:
    """Returns rows of pure work in a kernel of its own."""
    return _rows(names, category, kind=kind, flops=flops, **facts)


def _product(name: str, **facts: Any) -> _Rows:
    return _kernel(name, None, Category.CONTRACTION, **facts)


def _combining(name: str, **facts: Any) -> _Rows:
    return _kernel(name, None, regions=Regions.COMBINER, **facts)


def _nothing(names: str, category: Category, **facts: Any) -> _Rows:
    """Returns rows of operations without work for the device."""
    return _rows(names, category, traffic=Traffic.NONE, flops=0, **facts)


def _uncommon(names: str, use: BufferUse = BufferUse.FUSED, **facts: Any) -> _Rows:
    """Returns rows of pure operations, never recomputed: JAX writes none, or shapes are data."""
    return _rows(names, Category.OTHER, use=use, **facts)


_LIBRARY = "a library call that XLA does not capture"
"""Why XLA's calls of cuDNN, cuFFT, cuSOLVER and cuBLAS are in no graph: it runs them by thunks that
it never captures. (A convolution that autotuning turns into a cuDNN graph would be captured;
without the device none is.)"""

_CODE = Regions.CODE

_GROUPS: tuple[_Rows, ...] = (
    # Constants. JAX writes none of CHLO's.
    _nothing(
        "constant iota", Category.CONSTANT, kind=OpKind.CONSTANT, use=BufferUse.FREE, light=True
    ),
    _uncommon("constant constant_like", BufferUse.FREE, dialect="chlo"),
    # Elementwise.
    _light(
        "abs add and ceil clamp compare floor maximum minimum multiply negate not or select "
        "shift_left shift_right_arithmetic shift_right_logical sign subtract xor"
    ),
    _light("convert", flops=0),
    _elementwise(
        "complex count_leading_zeros imag is_finite popcnt real reduce_precision "
        "round_nearest_afz round_nearest_even",
        flops=1,
    ),
    _elementwise("bitcast_convert", flops=0, light=True, use=BufferUse.VIEW),
    _elementwise("divide remainder rsqrt sqrt", flops=4),
    _elementwise("cbrt exponential exponential_minus_one log log_plus_one", flops=8),
    _heavy("cosine logistic sine", flops=8),
    _heavy("atan2 power tan tanh", flops=16),
    _elementwise("conj is_inf is_neg_inf is_pos_inf next_after square", flops=1, dialect="chlo"),
    _heavy("acos acosh asin asinh atan atanh cosh sinh tan", flops=16, dialect="chlo"),
    _heavy("bessel_i1e erf erf_inv erfc", flops=32, dialect="chlo"),
    _heavy("digamma lgamma polygamma zeta", flops=64, dialect="chlo"),
    # Movement.
    *map(_movement, ("broadcast_in_dim", "concatenate", "pad", "reverse", "slice", "transpose")),
    _movement("reshape", use=BufferUse.VIEW),
    _movement("dynamic_slice", light=False),
    # Addresses that are data.
    _indexed("gather", BufferUse.FUSED, Traffic.GATHERED, flops=0),
    _indexed("dynamic_gather", BufferUse.FUSED, Traffic.GATHERED, flops=0),
    _indexed("dynamic_update_slice", BufferUse.IN_PLACE, Traffic.UPDATED, flops=0),
    _indexed(
        "scatter", BufferUse.IN_PLACE, Traffic.SCATTERED, flops=None, regions=Regions.COMBINER
    ),
    # Reductions and kernels.
    _combining(
        "reduce",
        category=Category.REDUCTION,
        kind=OpKind.REDUCTION,
        use=BufferUse.REDUCTION,
        traffic=Traffic.FUSED_OPERANDS,
    ),
    _combining("reduce_window", category=Category.REDUCTION, fuses_operands=True),
    _combining("select_and_scatter", fuses_operands=True),
    _combining("map", category=Category.ELEMENTWISE, use=BufferUse.ELEMENTWISE),
    _combining("sort"),
    _kernel("top_k", None, dialect="chlo"),
    _kernel("cholesky fft triangular_solve", None, use=BufferUse.LIBRARY, no_capture=_LIBRARY),
    _kernel("rng_bit_generator", 32, fuses_operands=True),  # the rounds of Threefry
    # XLA expands batch norms into elementwise work and reductions.
    _kernel("batch_norm_inference", 4, fuses_operands=True),
    _kernel("batch_norm_training", 8, fuses_operands=True),
    _kernel("batch_norm_grad", 16, fuses_operands=True),
    _product("convolution", use=BufferUse.LIBRARY, no_capture=_LIBRARY),
    _product("dot"),
    _product("dot_general", widens=True),
    _product("ragged_dot", dialect="chlo", widens=True),
    # Exchanges between devices.
    _rows("all_gather all_to_all", Category.COLLECTIVE, synchronizes=True),
    _rows(
        "all_reduce reduce_scatter",
        Category.COLLECTIVE,
        regions=Regions.COMBINER,
        synchronizes=True,
    ),
    _rows("collective_broadcast collective_permute", Category.COLLECTIVE),
    _rows("cross-replica-sum", Category.COLLECTIVE),
    _rows("collective_reduce", Category.COLLECTIVE, regions=Regions.COMBINER),
    _rows(
        "all_gather all_reduce all_to_all collective_permute reduce_scatter",
        Category.COLLECTIVE,
        dialect="sdy",
    ),
    _rows(
        "infeed outfeed recv send",
        Category.HOST_TRANSFER,
        no_capture="a transfer to or from the host",
    ),
    # Code.
    _rows(
        "while",
        Category.LOOP,
        kind=OpKind.EXPENSIVE,
        use=BufferUse.IN_PLACE,
        flops=0,
        regions=_CODE,
    ),
    _rows("case if", Category.CONDITIONAL, kind=OpKind.EXPENSIVE, flops=0, regions=_CODE),
    _rows("custom_call", Category.CALL, flops=None, traffic=Traffic.KERNEL),
    # What XLA inlines.
    _rows(
        "manual_computation",
        Category.MANUAL,
        dialect="sdy",
        kind=OpKind.EXPENSIVE,
        flops=0,
        regions=_CODE,
        fuses_operands=True,
    ),
    _rows(
        "composite",
        Category.CALL,
        flops=None,
        traffic=Traffic.KERNEL,
        regions=Regions.OTHER,
        fuses_operands=True,
    ),
    _rows(
        "call call_indirect",
        Category.CALL,
        dialect="func",
        flops=0,
        no_capture="a call that is not inlined",
        fuses_operands=True,
    ),
    # No work.
    _nothing("optimization_barrier", Category.RELABEL, use=BufferUse.ALIAS),
    _nothing("sharding_constraint", Category.RELABEL, dialect="sdy", use=BufferUse.ELEMENTWISE),
    _nothing(
        "after_all create_token get_tuple_element tuple", Category.BOOKKEEPING, use=BufferUse.FUSED
    ),
    _nothing("return", Category.TERMINATOR),
    _nothing("return", Category.TERMINATOR, dialect="sdy"),
    _nothing("return", Category.TERMINATOR, dialect="func"),
    _nothing("func", Category.DECLARATION, dialect="func", regions=_CODE),
    _nothing("module", Category.DECLARATION, dialect="builtin", regions=Regions.OTHER),
    _nothing("mesh", Category.DECLARATION, dialect="sdy"),
    # Neither written by JAX nor relied on by hloom.
    _uncommon(
        "broadcast dynamic_broadcast_in_dim dynamic_iota dynamic_pad dynamic_reshape "
        "get_dimension_size partition_id real_dynamic_slice replica_id torch_index_select "
        "uniform_dequantize uniform_quantize"
    ),
    _uncommon("async_start", BufferUse.WHOLE, regions=Regions.OTHER),
    _uncommon(
        "async_done dynamic_conv einsum rng set_dimension_size unary_einsum", BufferUse.WHOLE
    ),
    _uncommon(
        "broadcast_add broadcast_and broadcast_compare broadcast_complex broadcast_divide "
        "broadcast_maximum broadcast_minimum broadcast_multiply broadcast_next_after "
        "broadcast_or broadcast_remainder broadcast_select broadcast_shift_left "
        "broadcast_shift_right_arithmetic broadcast_shift_right_logical broadcast_subtract "
        "broadcast_xor mulhi",
        dialect="chlo",
    ),
    _uncommon(
        "_asin_acos_kernel broadcast_atan2 broadcast_polygamma broadcast_power broadcast_zeta",
        BufferUse.HEAVY,
        dialect="chlo",
    ),
    _uncommon("scan", BufferUse.WHOLE, dialect="chlo", regions=Regions.OTHER),
    _uncommon("constant", BufferUse.WHOLE, dialect="func"),
    # Shardy's own, which its partitioner writes after hloom's passes.
    _uncommon("named_computation", BufferUse.WHOLE, dialect="sdy", regions=Regions.OTHER),
    _uncommon(
        "all_slice constant data_flow_edge func_data_flow_edge propagation_barrier "
        "replicated_to_unreduced reshard sharded_to_unreduced sharding_group",
        BufferUse.WHOLE,
        dialect="sdy",
    ),
)


def table(rows: Iterable[tuple[str, OpFacts]]) -> dict[str, OpFacts]:
    """Returns the rows by name. Raises ValueError where an operation has two."""
    found: dict[str, OpFacts] = {}
    for name, facts in rows:
        if name in found:
            raise ValueError(f"{name} has two rows in the table of operations, and wants one")
        found[name] = facts
    return found


_TABLE = table(row for group in _GROUPS for row in group)
