"""How each operation stands in memory when XLA runs it: one table of names.

What stands in no table, of a newer StableHLO or of another dialect, counts as WHOLE: its operands
and results take all their memory. tests/passes/ir/test_op_memory.py wants
every registered operation in a table.
"""

from __future__ import annotations

from hloom.passes.analysis.memory_model.trace import Work
from hloom.passes.ir.ops import FUSIBLE

_FREE = frozenset({"stablehlo.constant", "stablehlo.iota", "chlo.constant", "chlo.constant_like"})

_VIEWS = frozenset({"stablehlo.reshape", "stablehlo.bitcast_convert"})

_IN_PLACE = frozenset({"stablehlo.dynamic_update_slice", "stablehlo.scatter", "stablehlo.while"})

_HEAVY = frozenset(
    f"stablehlo.{name}" for name in "atan2 cosine logistic power sine tan tanh".split()
) | frozenset(
    f"chlo.{name}"
    for name in (
        "_asin_acos_kernel acos acosh asin asinh atan atanh bessel_i1e cosh digamma erf erf_inv "
        "erfc lgamma polygamma sinh tan zeta broadcast_atan2 broadcast_polygamma broadcast_power "
        "broadcast_zeta"
    ).split()
)
"""An exponential is not among them: XLA does it again for each reader."""

_FUSED = (
    FUSIBLE
    | frozenset(
        f"stablehlo.{name}"
        for name in (
            "broadcast dynamic_broadcast_in_dim dynamic_gather dynamic_iota dynamic_pad "
            "dynamic_reshape gather get_dimension_size map partition_id real_dynamic_slice "
            "replica_id torch_index_select uniform_dequantize uniform_quantize"
        ).split()
    )
    | frozenset(
        f"chlo.{name}"
        for name in (
            "broadcast_add broadcast_and broadcast_compare broadcast_complex broadcast_divide "
            "broadcast_maximum broadcast_minimum broadcast_multiply broadcast_next_after "
            "broadcast_or broadcast_remainder broadcast_select broadcast_shift_left "
            "broadcast_shift_right_arithmetic broadcast_shift_right_logical broadcast_subtract "
            "broadcast_xor mulhi"
        ).split()
    )
    | frozenset(
        {
            "sdy.sharding_constraint",
            "stablehlo.after_all",
            "stablehlo.create_token",
            "stablehlo.get_tuple_element",
            "stablehlo.tuple",
        }
    )
)
"""The last ones are no work at all, and what they make is nothing new, or nothing in memory."""

_WHOLE = (
    frozenset(
        f"stablehlo.{name}"
        for name in (
            "all_gather all_reduce all_to_all async_done async_start batch_norm_grad "
            "batch_norm_inference batch_norm_training case cholesky collective_broadcast "
            "collective_permute collective_reduce composite convolution cross-replica-sum "
            "custom_call dot dot_general dynamic_conv einsum fft if infeed outfeed recv "
            "reduce_scatter reduce_window return rng rng_bit_generator select_and_scatter send "
            "set_dimension_size sort triangular_solve unary_einsum"
        ).split()
    )
    | frozenset({"chlo.ragged_dot", "chlo.scan", "chlo.top_k"})
    | frozenset(
        f"sdy.{name}"
        for name in (
            "all_gather all_reduce all_slice all_to_all collective_permute constant data_flow_edge "
            "func_data_flow_edge manual_computation mesh named_computation propagation_barrier "
            "reduce_scatter replicated_to_unreduced reshard return sharded_to_unreduced "
            "sharding_group"
        ).split()
    )
)
"""A terminator and a mesh make nothing: they stand here to be in one table."""

TABLES: tuple[tuple[Work, frozenset[str]], ...] = (
    (Work.FREE, _FREE),
    (Work.VIEW, _VIEWS),
    (Work.IN_PLACE, _IN_PLACE),
    (Work.ALIAS, frozenset({"stablehlo.optimization_barrier"})),
    (Work.REDUCTION, frozenset({"stablehlo.reduce"})),
    (Work.HEAVY, _HEAVY),
    (Work.FUSED, _FUSED - _VIEWS - _HEAVY),
    (Work.WHOLE, _WHOLE),
)
"""Names by work; each is in one of them."""

_WORK = {name: work for work, names in TABLES for name in names}

KNOWN = frozenset(_WORK)
"""Names of the operations that hloom knows."""


def work_of(name: str, results: int) -> Work:
    """How operands and so many results of an operation of this name stand in memory."""
    work = _WORK.get(name, Work.WHOLE)
    # What XLA fuses has one result.
    return Work.WHOLE if work is Work.FUSED and results != 1 else work
