"""What of a dump a replay believes: options of XLA from a list, and no code of others."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from support.dumps.replay_programs import MAIN, X, text_of

from hloom.dumps.read.module import ModuleDump
from hloom_tools.replay import ReplayError
from hloom_tools.replay import manifest as recorded
from hloom_tools.replay.manifest import taken_over
from hloom_tools.replay.program import ReplayProgram

VALUES = {
    "xla_gpu_enable_command_buffer": "FUSION,CUBLAS",
    "xla_gpu_enable_while_loop_unrolling": "WHILE_LOOP_UNROLLING_NO_UNROLL",
    "xla_cpu_max_isa": "AVX2",
    "xla_disable_hlo_passes": "algsimp,constant_folding",
}


def a_value(name: str) -> str:
    """A value that a listed option may have."""
    if name in VALUES:
        return VALUES[name]
    tried = ("True", "1", "0.5")
    return next(text for text in tried if recorded._ALLOWED[name].fullmatch(text))


@pytest.mark.parametrize("name", sorted(recorded._ALLOWED))
def test_options_of_the_list_are_applied(name: str) -> None:
    assert taken_over({name: a_value(name)}) == ({name: a_value(name)}, ())
    for value in ("/etc/passwd", "x" * 200, "-1", "1\n", [1], {}, "True False", "1" * 13):
        with pytest.raises(ReplayError, match=f"sets {name} to .*, which it cannot be"):
            taken_over({name: value})


def test_options_of_the_list_are_known_to_xla() -> None:
    """A misspelt one would never be applied. Some are gone from a later jaxlib."""
    refused = {}
    for name in recorded._ALLOWED:
        try:
            jax.jit(jnp.sin).lower(X).compile(compiler_options={name: a_value(name)})
        except jax.errors.JaxRuntimeError as error:
            refused[name] = str(error)
    assert {name: text for name, text in refused.items() if "No such" not in text} == {}
    assert len(refused) < 0.1 * len(recorded._ALLOWED), refused


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("xla_gpu_cuda_data_dir", "x"),
        ("xla_gpu_ptx_file", "x"),
        ("xla_gpu_llvm_ir_file", "x"),
        ("xla_gpu_libnvjitlink_mode", "1"),
        ("xla_gpu_enable_libnvptxcompiler", "False"),
        ("xla_gpu_enable_libnvjitlink", "False"),
        ("xla_gpu_load_autotune_results_from", "x"),
        ("xla_gpu_dump_autotune_results_to", "x"),
        ("xla_gpu_dump_autotune_logs_to", "x"),
        ("xla_gpu_per_fusion_autotune_cache_dir", "x"),
        ("xla_gpu_experimental_autotuner_cache_dir", "x"),
        ("xla_gpu_kernel_cache_file", "x"),
        ("xla_gpu_algorithm_denylist_path", "x"),
        ("xla_gpu_pgle_profile_file_or_directory_path", "x"),
        ("xla_gpu_target_config_filename", "x"),
        ("xla_gpu_gemm_autotuner_override_file", "x"),
        ("xla_gpu_ptx_compiler_extra_flags", "x"),
        ("xla_gpu_experimental_matmul_perf_table_path", "x"),
        ("xla_gpu_unsafe_fallback_to_driver_on_ptxas_not_found", "True"),
        ("xla_backend_extra_options", "x"),
        ("xla_anything", "/x"),
        ("xla_anything", "a;b"),
        ("anything", "..\\x"),
        ("xla_anything", {"a": 1}),
    ],
)
def test_options_that_reach_out_end_the_replay(name: str, value: object) -> None:
    with pytest.raises(ReplayError, match="may read, write or run files: refused. --no-options "):
        taken_over({name: value})


def test_others_are_left_out_and_both_are_told() -> None:
    given = {"xla_cpu_enable_fast_math": True, "xla_dump_to": "/d", "xla_new": "1", "other": "a"}
    manifest = {"platform": "cpu", "compile_options": given}
    applied, notes = recorded.options(manifest, "cpu")
    assert applied == {"xla_cpu_enable_fast_math": "True"}
    assert notes == [
        "with the dump's options of XLA: xla_cpu_enable_fast_math=True",
        "left out of the dump's options of XLA: other, xla_dump_to, xla_new",
    ]
    assert recorded.options(manifest, "cuda") == ({}, [])


def test_without_its_options_a_dump_is_replayed(sample_module: ModuleDump) -> None:
    given = {"xla_gpu_cuda_data_dir": "/x", "xla_cpu_enable_fast_math": "True"}
    dump = dataclasses.replace(
        sample_module, manifest=sample_module.manifest | {"compile_options": given}
    )
    with pytest.raises(ReplayError, match="xla_gpu_cuda_data_dir"):
        ReplayProgram.load(dump)
    assert ReplayProgram.load(dump, with_options=False).options == {}


def calling(call: str) -> str:
    return (
        "module @m {\n  func.func public @main(%arg0: tensor<3xf32>) -> tensor<3xf32> {\n"
        f"    %0 = {call} : (tensor<3xf32>) -> tensor<3xf32>\n"
        "    return %0 : tensor<3xf32>\n  }\n}\n"
    )


@pytest.mark.parametrize(
    "call",
    [
        "stablehlo.custom_call @__gpu$xla.gpu.triton(%arg0)",
        "stablehlo.custom_call @tpu_custom_call(%arg0)",
        "stablehlo.custom_call @mosaic_gpu_v2(%arg0)",
        "stablehlo.custom_call @lapackish(%arg0)",
        "stablehlo.custom_call @my_kernel(%arg0) {api_version = 4 : i32, backend_config = {}}",
        "stablehlo.custom_call @hloom.barrier.v1(%arg0) "
        '{api_version = 4 : i32, backend_config = {image = "x"}}',
        "stablehlo.custom_call @hloom.barrier.v1(%arg0) "
        '{api_version = 4 : i32, mhlo.backend_config = {image = "x"}}',
        "mhlo.custom_call @Sharding(%arg0)",
    ],
)
def test_code_wants_trust(call: str) -> None:
    text = calling(call)
    with pytest.raises(ReplayError, match=r"replay it with --trust\."):
        ReplayProgram.parse(text, source="m", trusted=False)
    assert ReplayProgram.parse(text, source="m").name == "m"


@pytest.mark.parametrize(
    "call",
    [
        "stablehlo.custom_call @Sharding(%arg0)",
        "stablehlo.custom_call @lapack_sgesdd_ffi(%arg0)",
        "stablehlo.custom_call @cu_threefry2x32_ffi(%arg0)",
        "stablehlo.custom_call @hloom.barrier.v1(%arg0) {api_version = 4 : i32}",
        "stablehlo.sine %arg0",
    ],
)
def test_hints_and_linear_algebra_do_not(call: str) -> None:
    assert ReplayProgram.parse(calling(call), source="m", trusted=False).name == "m"


def test_programs_of_jax_do_not() -> None:
    def linear_algebra(x: jax.Array) -> jax.Array:
        square = x @ x.T + jnp.eye(8)
        values = jnp.linalg.eigh(square)[0] + jnp.linalg.svd(square)[1]
        return jnp.linalg.solve(square, values) + jnp.linalg.qr(square)[1][0]

    for function in (
        linear_algebra,
        lambda x: jax.random.normal(jax.random.key(0), x.shape) + x,
        lambda x: jax.lax.top_k(x, 2)[0] + jax.lax.approx_max_k(x, 2)[0],
        lambda x: jnp.fft.rfft(x).real,
        lambda x: jax.lax.with_sharding_constraint(
            x, jax.sharding.SingleDeviceSharding(jax.devices()[0])
        ),
        lambda x: jax.scipy.special.erf(x) + jax.lax.lgamma(x),
        lambda x: (jax.debug.print("{}", x), x)[1],
    ):
        text = text_of(function, X)
        assert ReplayProgram.parse(text, source="m", trusted=False).results


def test_counts_of_devices_are_bounded() -> None:
    text = MAIN.replace("TYPE", "f32")
    for count in ("0 : i32", "-1 : i32", "1000000000 : i32", '"x"'):
        hostile = text.replace("@m {", f"@m attributes {{mhlo.num_partitions = {count}}} {{", 1)
        with pytest.raises(ReplayError, match="wants a number from 1 to"):
            ReplayProgram.parse(hostile, source="m")


def test_versions_in_commands_are_versions() -> None:
    for text in ("0.10.2", "0.12.0.dev20260101", "0.10.2+cuda13", "0.7rc1"):
        assert recorded.version({"jax": text}, "jax") == text
    for odd in ("0.1; rm -rf ~", "$(x)", "1\n2", "", 3, None, ["0.1"]):
        assert recorded.version({"jax": odd}, "jax") is None
    assert recorded.version([], "jax") is None
