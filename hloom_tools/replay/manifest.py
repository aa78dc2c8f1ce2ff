"""Reads the entries of a dump's manifest that a replay uses: names, the target, allowed options of
XLA.

A manifest is not trusted, and some of XLA's options name programs to run and files to read or
write. So a list has the options that affect numbers, schedules and memory, with their allowed
values. Others are left out; where one seems to name files or programs, the replay does not start.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jax

from hloom.passes.framework.structure import read
from hloom.passes.framework.target import Target
from hloom.show.visible import visible
from hloom_tools.replay import ReplayError

_LONGEST_NAME = 500
_MOST_LEFT_OUT = 10
_MOST_WIDTHS = 16
"""The most entries by element width of matrix products."""

_KNOWN = {"name", "memory_bytes", "usable_bytes", "speed", "keeps_barriers"}
_FIGURES = {"matrix_flops_per_s", "vector_flops_per_s", "bytes_per_s", "kernel_s"}
"""The fields that a recorded target and its speed must have: the defaults are another device's."""

_VERSION = re.compile(r"\d+(\.\d+){0,4}([.+-]?[A-Za-z0-9.]+)?", re.ASCII)


def names(entries: Any) -> tuple[str, ...]:
    """Returns the names of a manifest's arguments or results."""
    if not isinstance(entries, list):
        return ()
    given = (str(each.get("name") or "") for each in entries if isinstance(each, dict))
    return tuple(name[:_LONGEST_NAME] for name in given)


def version(versions: Any, name: str) -> str | None:
    """Returns a package's version for a command line; None where "versions" has no valid one."""
    found = versions.get(name) if isinstance(versions, dict) else None
    return found if isinstance(found, str) and _VERSION.fullmatch(found) else None


def target(recorded: Any, here: Target) -> Target:
    """Returns the recorded target on this platform, so that the passes plan as before; or
    `here`."""
    try:
        found = read(Target, recorded)
    except ValueError:
        return here
    is_known = recorded.keys() >= _KNOWN and recorded["speed"].keys() >= _FIGURES
    is_bounded = len(found.speed.matrix_flops_per_s) <= _MOST_WIDTHS
    if not (is_known and is_bounded and 0 < len(found.name) <= _LONGEST_NAME):
        return here
    return dataclasses.replace(
        found,
        platform=here.platform,
        compute_capability=here.compute_capability,
        pipelined=here.pipelined,
    )


def notes(manifest: Mapping[str, Any], here: str, planned: Target, found: Target) -> Iterator[str]:
    """Describes the differences between the dump's compile and one for `here`, with `planned` in
    place of `found`."""
    theirs = manifest.get("platform")
    if isinstance(theirs, str) and theirs != here:
        yield f"dumped on {theirs[:_LONGEST_NAME]}, compiled for {here}"
    if planned.name != found.name:
        yield f"the passes plan for {planned.name}, as they did"
    if planned is found and here == found.platform and isinstance(manifest.get("target"), dict):
        yield "the recorded target cannot be read: the passes plan for what is here"
    compiled = manifest.get("compile")
    if isinstance(compiled, dict) and compiled.get("fell_back"):
        yield f"the dumped program ran without its passes: {compiled['fell_back']}"
    jax_then = version(manifest.get("versions"), "jax")
    if jax_then is not None and jax_then != jax.__version__:
        yield f"dumped with jax {jax_then}, replayed with {jax.__version__}"


def options(manifest: Mapping[str, Any], platform: str) -> tuple[dict[str, str], list[str]]:
    """Returns the program's own options of XLA that the replay sets, and notes; none on another
    platform.

    Raises ReplayError for options that may read, write or run files.
    """
    given = manifest.get("compile_options")
    if not isinstance(given, dict) or manifest.get("platform") != platform:
        return {}, []
    applied, left_out = taken_over(given)
    said = []
    if applied:
        shown = " ".join(f"{name}={value}" for name, value in applied.items())
        said.append(f"with the dump's options of XLA: {shown}")
    if left_out:
        shown = ", ".join(name[:_LONGEST_NAME] for name in left_out[:_MOST_LEFT_OUT])
        more = len(left_out) - _MOST_LEFT_OUT
        said.append(
            f"left out of the dump's options of XLA: {shown}" + f" and {more} more" * (more > 0)
        )
    return applied, said


_BOOL = re.compile(r"[01]|[Tt]rue|[Ff]alse")
_COUNT = re.compile(r"\d{1,12}")
_REAL = re.compile(r"\d{1,6}(\.\d{1,6})?")

_FLAGS = {
    "xla_gpu_": """
        async_dot copy_insertion_use_region_analysis cublas_fallback
        default_to_alg_dot_bf16_bf16_f32 deterministic_ops enable_all_gather_combine_by_dim
        enable_analytical_latency_estimator enable_approx_costly_collectives enable_cublaslt
        enable_cudnn_layer_norm enable_dynamic_slice_fusion enable_fast_min_max
        enable_highest_priority_async_stream enable_host_memory_offloading
        enable_latency_hiding_scheduler enable_nccl_comm_splitting enable_pipelined_all_gather
        enable_pipelined_all_reduce enable_pipelined_collectives enable_pipelined_host_offloading
        enable_pipelined_p2p enable_pipelined_reduce_scatter enable_reassociation_for_converted_ar
        enable_reduce_scatter_combine_by_dim enable_scatter_determinism_expander
        enable_shared_constants enable_triton_gemm enable_while_loop_double_buffering
        enable_while_loop_reduce_scatter_code_motion exclude_nondeterministic_ops
        exhaustive_tiling_search ftz graph_enable_concurrent_region multi_streamed_windowed_einsum
        temp_buffer_use_separate_color triton_gemm_any unsupported_enable_triton_gemm
        use_memcpy_local_p2p use_runtime_fusion
    """,
    "xla_cpu_": """
        copy_insertion_use_region_analysis enable_concurrency_optimized_scheduler enable_fast_math
        enable_fast_min_max enable_platform_dependent_math fast_math_honor_division
        fast_math_honor_functions fast_math_honor_infs fast_math_honor_nans ftz multi_thread_eigen
        strict_dot_conv_math use_onednn use_xnnpack
    """,
    "xla_": "allow_excess_precision llvm_disable_expensive_passes",
}
_COUNTS = {
    "xla_gpu_": """
        all_gather_combine_threshold_bytes all_reduce_combine_threshold_bytes autotune_level
        autotune_max_solutions collective_inflation_factor
        collective_permute_combine_threshold_bytes collective_permute_decomposer_threshold
        cudnn_gemm_fusion_level cudnn_gemm_max_plans dot_merger_threshold_mb
        experimental_parallel_async_compute_limit experimental_parallel_collective_overlap_limit
        gemm_rewrite_size_threshold graph_min_graph_size memory_limit_slop_factor
        nccl_collective_max_nchannels nccl_p2p_max_nchannels reduce_scatter_combine_threshold_bytes
        threshold_for_windowed_einsum_mib
    """,
    "xla_cpu_": """
        collective_call_terminate_timeout_seconds collective_timeout_seconds
        parallel_codegen_split_count prefer_vector_width
    """,
    "xla_": "backend_optimization_level",
}
"""Names of options by their prefix."""

_GRAPHS = "FUSION CUBLAS CUBLASLT CUDNN CUSTOM_CALL COLLECTIVES CONDITIONAL WHILE".split()
_GRAPHS += ["DYNAMIC_SLICE_FUSION", "DYNAMIC_SLICE_COPY_FUSION", "INVALID"]
_PASSES = "algsimp|constant_folding|rematerialization|host-offloading|reduce-precision"


def _words(words: str) -> re.Pattern[str]:
    return re.compile(rf"(?:(?:{words})(?:,(?:{words}))*)?")


_ALLOWED: dict[str, re.Pattern[str]] = {
    f"{prefix}{name}": pattern
    for table, pattern in ((_FLAGS, _BOOL), (_COUNTS, _COUNT))
    for prefix, listed in table.items()
    for name in listed.split()
} | {
    "xla_gpu_auto_spmd_partitioning_memory_budget_ratio": _REAL,
    "xla_gpu_autotune_gemm_rtol": _REAL,
    "xla_gpu_enable_command_buffer": _words("|".join(_GRAPHS)),
    "xla_gpu_enable_while_loop_unrolling": re.compile(r"WHILE_LOOP_UNROLLING_[A-Z_]{1,40}"),
    "xla_cpu_max_isa": re.compile(r"|SSE4_2|AVX|AVX2|AVX512|AVX512_VNNI|AVX512_BF16|AMX(_FP16)?"),
    "xla_disable_hlo_passes": _words(_PASSES),
}
"""The pattern of allowed values by option name."""

_DUMPS = "xla_dump"
"""Options that make XLA write a program's files without affecting the program."""

_REACHES_OUT = re.compile(
    r"(?:^|_)(?:cache|dir|directory|dump|extra|file|filename|files|flags|from|libnvjitlink|"
    r"libnvptxcompiler|libraries|library|llvm|load|nvlink|override|path|plugin|profile|ptx|ptxas|"
    r"results|to)(?:_|$)"
)
"""Words in names of options that make XLA read or write files, or run other programs."""

_PLAIN = re.compile(r"[\w+,:=. -]{0,80}")


def taken_over(given: Mapping[str, Any]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Returns the "compile_options" of a manifest to apply, and the names of those to leave out.

    Raises ReplayError where one names files or programs, or has an invalid value.
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
