"""The allow-list of XLA options that a replay takes from a manifest.

A manifest may come from anybody, and among XLA's options are some that name programs to run and
files to read or write. So there is a list of those that decide numbers, schedules and memory,
with the values that they may have. Others are left out; where one looks as though it reached for
files or programs, the replay does not begin.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hloom.tools.replay.errors import ReplayError
from hloom.visible import visible

_BOOL = re.compile(r"[01]|[Tt]rue|[Ff]alse")
_COUNT = re.compile(r"\d{1,12}")
_REAL = re.compile(r"\d{1,6}(\.\d{1,6})?")

_FLAGS = """
xla_allow_excess_precision
xla_cpu_copy_insertion_use_region_analysis
xla_cpu_enable_concurrency_optimized_scheduler
xla_cpu_enable_fast_math
xla_cpu_enable_fast_min_max
xla_cpu_enable_platform_dependent_math
xla_cpu_fast_math_honor_division
xla_cpu_fast_math_honor_functions
xla_cpu_fast_math_honor_infs
xla_cpu_fast_math_honor_nans
xla_cpu_ftz
xla_cpu_multi_thread_eigen
xla_cpu_strict_dot_conv_math
xla_cpu_use_onednn
xla_cpu_use_xnnpack
xla_gpu_async_dot
xla_gpu_copy_insertion_use_region_analysis
xla_gpu_cublas_fallback
xla_gpu_default_to_alg_dot_bf16_bf16_f32
xla_gpu_deterministic_ops
xla_gpu_enable_all_gather_combine_by_dim
xla_gpu_enable_analytical_latency_estimator
xla_gpu_enable_approx_costly_collectives
xla_gpu_enable_cublaslt
xla_gpu_enable_cudnn_layer_norm
xla_gpu_enable_dynamic_slice_fusion
xla_gpu_enable_fast_min_max
xla_gpu_enable_highest_priority_async_stream
xla_gpu_enable_host_memory_offloading
xla_gpu_enable_latency_hiding_scheduler
xla_gpu_enable_nccl_comm_splitting
xla_gpu_enable_pipelined_all_gather
xla_gpu_enable_pipelined_all_reduce
xla_gpu_enable_pipelined_collectives
xla_gpu_enable_pipelined_host_offloading
xla_gpu_enable_pipelined_p2p
xla_gpu_enable_pipelined_reduce_scatter
xla_gpu_enable_reassociation_for_converted_ar
xla_gpu_enable_reduce_scatter_combine_by_dim
xla_gpu_enable_scatter_determinism_expander
xla_gpu_enable_shared_constants
xla_gpu_enable_triton_gemm
xla_gpu_enable_while_loop_double_buffering
xla_gpu_enable_while_loop_reduce_scatter_code_motion
xla_gpu_exclude_nondeterministic_ops
xla_gpu_exhaustive_tiling_search
xla_gpu_ftz
xla_gpu_graph_enable_concurrent_region
xla_gpu_multi_streamed_windowed_einsum
xla_gpu_temp_buffer_use_separate_color
xla_gpu_triton_gemm_any
xla_gpu_unsupported_enable_triton_gemm
xla_gpu_use_memcpy_local_p2p
xla_gpu_use_runtime_fusion
xla_llvm_disable_expensive_passes
"""

_COUNTS = """
xla_backend_optimization_level
xla_cpu_collective_call_terminate_timeout_seconds
xla_cpu_collective_timeout_seconds
xla_cpu_parallel_codegen_split_count
xla_cpu_prefer_vector_width
xla_gpu_all_gather_combine_threshold_bytes
xla_gpu_all_reduce_combine_threshold_bytes
xla_gpu_autotune_level
xla_gpu_autotune_max_solutions
xla_gpu_collective_inflation_factor
xla_gpu_collective_permute_combine_threshold_bytes
xla_gpu_collective_permute_decomposer_threshold
xla_gpu_cudnn_gemm_fusion_level
xla_gpu_cudnn_gemm_max_plans
xla_gpu_dot_merger_threshold_mb
xla_gpu_experimental_parallel_async_compute_limit
xla_gpu_experimental_parallel_collective_overlap_limit
xla_gpu_gemm_rewrite_size_threshold
xla_gpu_graph_min_graph_size
xla_gpu_memory_limit_slop_factor
xla_gpu_nccl_collective_max_nchannels
xla_gpu_nccl_p2p_max_nchannels
xla_gpu_reduce_scatter_combine_threshold_bytes
xla_gpu_threshold_for_windowed_einsum_mib
"""

_GRAPHS = "FUSION CUBLAS CUBLASLT CUDNN CUSTOM_CALL COLLECTIVES CONDITIONAL WHILE".split()
_GRAPHS += ["DYNAMIC_SLICE_FUSION", "DYNAMIC_SLICE_COPY_FUSION", "INVALID"]
_PASSES = "algsimp|constant_folding|rematerialization|host-offloading|reduce-precision"


def _words(words: str) -> re.Pattern[str]:
    return re.compile(rf"(?:(?:{words})(?:,(?:{words}))*)?")


_ALLOWED: dict[str, re.Pattern[str]] = {
    **dict.fromkeys(_FLAGS.split(), _BOOL),
    **dict.fromkeys(_COUNTS.split(), _COUNT),
    "xla_gpu_auto_spmd_partitioning_memory_budget_ratio": _REAL,
    "xla_gpu_autotune_gemm_rtol": _REAL,
    "xla_gpu_enable_command_buffer": _words("|".join(_GRAPHS)),
    "xla_gpu_enable_while_loop_unrolling": re.compile(r"WHILE_LOOP_UNROLLING_[A-Z_]{1,40}"),
    "xla_cpu_max_isa": re.compile(r"|SSE4_2|AVX|AVX2|AVX512|AVX512_VNNI|AVX512_BF16|AMX(_FP16)?"),
    "xla_disable_hlo_passes": _words(_PASSES),
}
"""By name what a value has to look like."""

_DUMPS = "xla_dump"
"""They have XLA write what it made of a program, and decide nothing of it."""

_REACHES_OUT = re.compile(
    r"(?:^|_)(?:cache|dir|directory|dump|extra|file|filename|files|flags|from|libnvjitlink|"
    r"libnvptxcompiler|libraries|library|llvm|load|nvlink|override|path|plugin|profile|ptx|ptxas|"
    r"results|to)(?:_|$)"
)
"""Words in names of options that have XLA read or write files, or run other programs."""

_PLAIN = re.compile(r"[\w+,:=. -]{0,80}")


def taken_over(given: Mapping[str, Any]) -> tuple[dict[str, str], tuple[str, ...]]:
    """The options that are applied, and the names of those that are left out.

    Args:
      given: a manifest's "compile_options".

    Raises ReplayError where one reaches for files or programs, or has a value that it cannot have.
    """
    applied, left_out = {}, []
    for name, value in sorted(given.items()):
        text = str(value)
        allowed = _ALLOWED.get(name)
        if allowed is not None:
            if allowed.fullmatch(text) is None:
                raise ReplayError(
                    f"the manifest sets {name} to {_shown(text)}, which it cannot be. {_REMEDY}"
                )
            applied[name] = text
        elif name.startswith(_DUMPS):
            left_out.append(name)
        elif _REACHES_OUT.search(name) or not _PLAIN.fullmatch(text):
            raise ReplayError(
                f"the manifest sets {_shown(name)} to {_shown(text)}, by which XLA may read, write "
                f"or run files: refused. {_REMEDY}"
            )
        else:
            left_out.append(name)
    return applied, tuple(left_out)


_REMEDY = "--no-options replays without the dump's options of XLA; those in XLA_FLAGS are your own."


def _shown(text: str, most: int = 80) -> str:
    shortened = text if len(text) <= most else text[:most] + "…"
    return visible(shortened).replace("\n", "\\n")
