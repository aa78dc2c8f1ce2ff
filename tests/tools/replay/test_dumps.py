"""What a dump tells a replay: arguments, results, target and options.

Dumps of `fit`, run again: the recorded plan, and the decision that is wrong.

Running a dumped module again: what it gives, under these passes or others.

What of a dump a replay believes: options of XLA from a list, and no code of others.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from support.commands import Command
from support.dumps.replay_programs import MAIN, X, program_of, text_of
from support.results import assert_equal
from support.toy_passes import Fail, ReplaceTwo

import hloom
from hloom.dumps.read.dump import open_dump
from hloom.dumps.read.module import ModuleDump
from hloom.passes.chunk import Chunk
from hloom.passes.fit import Fit
from hloom.passes.framework import registry
from hloom.passes.framework.errors import PassError, SpecError
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.framework.target import Speed, Target
from hloom.passes.ir import walk
from hloom.passes.recompute.scan import rewrite
from hloom_tools.replay import ReplayError
from hloom_tools.replay import arguments as inputs
from hloom_tools.replay import manifest as recorded
from hloom_tools.replay.comparison import compare
from hloom_tools.replay.decisions import recorded_attempts
from hloom_tools.replay.interpreter import interpret
from hloom_tools.replay.manifest import taken_over, target
from hloom_tools.replay.program import ReplayProgram
from hloom_tools.replay.signature import SignatureValue


@pytest.mark.parametrize("devices", [0.5, 0, -8, "8", True, 1e300])
def test_links_of_no_whole_number_of_devices_are_not_planned_with(devices: object) -> None:
    recorded = dataclasses.asdict(Target(name="h100_sxm", platform="cuda"))
    assert target(recorded, Target()).name == "h100_sxm"
    recorded["speed"]["link_devices"] = devices
    assert target(recorded, Target()) == Target()


def test_a_dump_tells_arguments_results_target_and_options(sample_module: ModuleDump) -> None:
    program = ReplayProgram.load(sample_module)
    assert program.spec == "remat"
    # What the passes planned for, which is not this machine's.
    assert program.target == Target(memory_bytes=1 << 30, usable_bytes=1 << 30)
    given, results = inputs.dumped(program), inputs.dumped_results(program)
    assert results is not None
    names = [value.name for value in program.results]
    assert compare(program.compile("remat").run(given), results, names).equal

    linked = dataclasses.replace(
        Speed(), link_bytes_per_s=450e9, link_devices=8, network_bytes_per_s=5e10, collective_s=5e-6
    )
    manifest = sample_module.manifest | {
        "platform": "cuda",
        "target": dataclasses.asdict(Target(name="h100_sxm", platform="cuda", speed=linked)),
        "compile": {"fell_back": "pass 'remat' failed"},
        "versions": {"jax": "0.1"},
        "compile_options": {"xla_gpu_foo": "1"},
    }
    elsewhere = ReplayProgram.load(dataclasses.replace(sample_module, manifest=manifest))
    assert elsewhere.target.speed == linked
    assert elsewhere.notes == (
        "dumped on cuda, compiled for cpu",
        "the passes plan for h100_sxm, as they did",
        "the dumped program ran without its passes: pass 'remat' failed",
        f"dumped with jax 0.1, replayed with {jax.__version__}",
    )
    assert (elsewhere.target.name, elsewhere.target.platform) == ("h100_sxm", "cpu")
    assert elsewhere.options == {}
    here = manifest | {
        "platform": "cpu",
        "compile_options": {"xla_cpu_enable_fast_math": "True", "xla_dump_to": "/d", "other": "1"},
    }
    program = ReplayProgram.load(dataclasses.replace(sample_module, manifest=here))
    assert program.options == {"xla_cpu_enable_fast_math": "True"}
    assert program.compile("off").run(given)
    # XLA checks the options that it is given.
    wrong = dataclasses.replace(program, options={"xla_no_such_option": "1"})
    with pytest.raises(ReplayError, match="No such compile option"):
        wrong.compile("off")


def test_arguments_that_were_not_dumped_or_are_others_are_told(
    sample_module: ModuleDump, copied_module: Path
) -> None:
    for kind in ("arguments", "results"):
        shutil.rmtree(copied_module / kind)
    program = ReplayProgram.load(open_dump(copied_module).modules[0])
    assert not inputs.has_dumped(program)
    assert inputs.dumped_results(program) is None
    with pytest.raises(ReplayError, match=r"has no arguments: .*arrays=True"):
        inputs.dumped(program)
    damaged = Path(shutil.copytree(sample_module.folder, copied_module.parent / "damaged-0"))
    (damaged / "arguments" / "shards.bin").unlink()
    with pytest.raises(ReplayError, match=r"(?s)cannot be read: .* or use --arguments random\."):
        inputs.dumped(ReplayProgram.load(open_dump(damaged).modules[0]))
    other = ReplayProgram.parse(text_of(lambda x: x, X), source="other", dump=sample_module)
    with pytest.raises(ReplayError, match="its arguments are of another module"):
        inputs.dumped(other)
    shapes = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in (*program.arguments, X)]
    more = ReplayProgram.parse(text_of(lambda *x: x, *shapes), source="more", dump=sample_module)
    with pytest.raises(ReplayError, match=r"2 arrays of 3 arguments: x\[2\] is not there"):
        inputs.dumped(more)


@pytest.mark.parametrize(
    "kind",
    ["f32", "f64", "bf16", "f8E4M3FN", "f4E2M1FN", "i1", "i4", "ui2", "ui32", "complex<f32>"],
)
def test_random_arguments_are_small_numbers_of_their_dtype(kind: str) -> None:
    text = MAIN.replace("TYPE", f"40x3x{kind}")
    program = ReplayProgram.parse(text, source="m")
    [first], [same], [other] = (inputs.random(program, seed) for seed in (0, 0, 1))
    [value] = program.arguments
    assert isinstance(value, SignatureValue)
    assert (first.shape, first.dtype) == (value.shape, value.dtype)
    assert first.tobytes() == same.tobytes() != other.tobytes()
    if kind.startswith("complex"):
        first = first.real
    wide = first.astype(np.float64)
    assert np.isfinite(wide).all()
    assert wide.min() >= 0
    assert wide.max() <= 7
    assert len(np.unique(wide)) > 1


FitDump = tuple[Path, hloom.CompileRecord]


def test_the_attempts_before_the_plan_are_those_of_the_run(fit_dump: FitDump) -> None:
    folder, record = fit_dump
    [module] = open_dump(folder).modules
    [step] = Pipeline.parse(module.spec).passes
    assert isinstance(step, Fit)
    found = recorded_attempts(module, step)
    earlier = record.attempts[: record.best_attempt]
    assert [each.temp_bytes for each in found] == [each.temp_bytes for each in earlier]
    assert found[0].record.candidate is None


def test_it_is_planned_as_it_was_and_changes_nothing(fit_dump: FitDump, command: Command) -> None:
    status, text = command("bisect", fit_dump[0]).both
    assert status == 0, text
    assert "The passes change no result." in text
    assert "Note" not in text


def test_a_wrong_clone_is_found(
    fit_dump: FitDump, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = rewrite.clone_before

    def clone_before(anchor: Any, ops: Any, replacements: Any) -> Any:
        made = original(anchor, ops, replacements)
        for value, clone in list(made.items()):
            if clone.owner.operation.name == "stablehlo.subtract":
                made[value] = _negated(clone)
        return made

    monkeypatch.setattr(rewrite, "clone_before", clone_before)
    status, text = command("bisect", fit_dump[0]).both
    assert status == 1, text
    assert "It is 'fit': result" in text
    assert re.search(r"Decision \d+ of \d+: \S*/sub \(.*fit_dump\.py:\d+\) of a scan is", text)
    assert re.search(r"--decision 05-fit/remat/scan-\d+", text), text


def test_a_wrong_move_is_found(
    fit_dump: FitDump, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_, apply_ = Chunk.plan, Chunk.apply
    planned: list[ir.Module] = []

    def plan(self: Chunk, module: ir.Module, target: Target) -> Any:
        planned.append(module)
        return plan_(self, module, target)

    def apply(self: Chunk, plan: Any) -> None:
        apply_(self, plan)
        found = walk.operations(planned[-1].operation)
        log = next(op for op in found if op.name == "stablehlo.log")
        _negated(log.results[0])

    monkeypatch.setattr(Chunk, "plan", plan)
    monkeypatch.setattr(Chunk, "apply", apply)
    status, text = command("bisect", fit_dump[0]).both
    assert status == 1, text
    assert "It is 'fit': result" in text
    assert "--decision 05-fit/chunk/region-0" in text


def _negated(value: ir.Value) -> ir.Value:
    """The value's negative, in its place everywhere."""
    with ir.InsertionPoint.after(value.owner.operation), value.location:
        made = stablehlo.NegOp(value).result
    value.replace_all_uses_except(made, made.owner.operation)
    return made


def placed(mesh: jax.sharding.Mesh, value: Any, *spec: str | None) -> jax.Array:
    return jax.device_put(jnp.asarray(value), NamedSharding(mesh, PartitionSpec(*spec)))


def test_a_program_of_eight_devices_gives_what_it_gave() -> None:
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)

    def step(state: Any, x: jax.Array, key: jax.Array) -> Any:
        w = state["w"] - 0.1 * (x.T @ jnp.tanh(x @ state["w"]))
        narrow = (x.astype(jnp.bfloat16), x.astype(jnp.float8_e4m3fn), x.astype(jnp.int4))
        return {"w": w}, narrow, (x > 0, x + 1j), jax.random.split(key)[0], jnp.zeros((0, 3))

    values = np.random.default_rng(0).normal(size=(24, 8)).astype(np.float32)
    state = {"w": placed(mesh, values[:8], None, "b")}
    x, key = placed(mesh, values[8:], "a", None), jax.random.key(3)
    given = [np.array(state["w"]), np.array(x), np.array(jax.random.key_data(key))]
    program = program_of(step, state, x, key, donate_argnums=0)
    assert len(program.devices) == 8
    assert [(v.name, v.donated) for v in program.arguments] == [
        ("state['w']", True),
        ("x", False),
        ("key", False),
    ]

    kept = [array.copy() for array in given]
    runnable = program.compile("off")
    results = runnable.run(given)
    # Twice: a donated argument is on the host still.
    again = runnable.run(given)
    assert len(runnable.times_s(given, 3)) == 3
    assert_equal(given, kept)

    leaves = jax.tree.leaves(jax.jit(step)(state, x, key))
    wanted = [
        np.asarray(jax.random.key_data(leaf) if leaf.dtype == key.dtype else leaf)
        for leaf in leaves
    ]
    names = [value.name for value in program.results]
    assert names[0] == "result[0]['w']"
    assert compare(results, wanted, names).bits_equal
    assert compare(again, wanted, names).bits_equal


def test_passes_change_memory_and_no_result() -> None:
    def loss(ws: jax.Array, x: jax.Array) -> jax.Array:
        def layer(c: jax.Array, w: jax.Array) -> tuple[jax.Array, None]:
            return jax.nn.gelu(jnp.sin(c @ w)) + c, None

        return (jax.lax.scan(layer, x, ws)[0] ** 2).mean()

    shapes = [jax.ShapeDtypeStruct(s, "float32") for s in ((6, 16, 16), (512, 16))]
    program = program_of(jax.grad(loss), *shapes)
    given = inputs.random(program)
    off, on = program.compile("off"), program.compile(Pipeline.parse("remat"))
    assert on.step_bytes < off.step_bytes
    assert off.memory.temp_bytes > on.memory.temp_bytes > 0
    assert [run.name for run in on.record.runs][-1] == "remat"
    assert compare(on.run(given), off.run(given), ["gradient"]).equal
    # A budget that cannot be met is no error here.
    assert "cannot be held to 1.00 KiB" in (
        program.compile("remat{budget=1KiB}").record.complaint or ""
    )


def test_a_wrong_pass_is_seen_and_a_failing_one_never_falls_back() -> None:
    program = program_of(lambda x: x * 2.0, X)
    given = inputs.random(program)
    with registry.registered(ReplaceTwo):
        wrong = program.compile("replace-two").run(given)
    right = program.compile("off").run(given)
    [value] = compare(wrong, right, ["x"]).values
    assert not value.equal
    assert value.max_relative == pytest.approx(0.5 / (1 + right[0].mean() / right[0].max()), 0.1)
    for phase in ("plan", "apply", "verify", "compile"):
        with pytest.raises(PassError, match=f"failed in {phase}"):
            program.compile(Pipeline((Fail(phase=phase),)))
    with pytest.raises(SpecError, match="Did you mean 'remat'"):
        program.compile("remt")


def test_callbacks_that_give_nothing_are_left_out() -> None:
    def function(x: jax.Array) -> jax.Array:
        jax.debug.print("unordered {}", x)
        jax.debug.print("ordered {}", x, ordered=True)
        return x + 1

    program = program_of(function, X)
    assert program.notes[0] == "2 host callbacks without a result left out"
    # A token stands before the value, on both sides.
    assert [value.index for value in program.arguments + program.results] == [1, 1]
    given = inputs.random(program)
    np.testing.assert_array_equal(program.compile("off").run(given)[0], given[0] + 1)


def test_a_fresh_process_has_the_devices_and_libraries_that_a_module_needs(
    run_python: Callable[..., Any], tmp_path: Path
) -> None:
    mesh = jax.make_mesh((4,), ("a",), axis_types=(AxisType.Auto,))
    x = jax.ShapeDtypeStruct((4, 4), "float32", sharding=NamedSharding(mesh, PartitionSpec("a")))
    text = text_of(lambda x: (jnp.linalg.cholesky(x), x + 1), x)
    # 64-bit values in a process that has JAX make 32-bit ones.
    (tmp_path / "m.mlir").write_text(text.replace("f32", "f64").replace("spotrf", "dpotrf"))
    script = f"""
import numpy as np
from hloom_tools.replay.program import ReplayProgram
program = ReplayProgram.parse(open({str(tmp_path / "m.mlir")!r}).read(), source="m")
root, more = program.compile("off").run([np.eye(4) * 4])
print(len(program.devices), root.dtype, np.diag(root), more[0, 0])
"""
    result = run_python(script, XLA_FLAGS="")
    assert result.stdout.split("\n")[0] == "4 float64 [2. 2. 2. 2.] 5.0"


def test_the_interpreter_agrees() -> None:
    mesh = jax.make_mesh((8,), ("a",), axis_types=(AxisType.Auto,))
    x = jax.ShapeDtypeStruct((8, 4), "float32", sharding=NamedSharding(mesh, PartitionSpec("a")))

    def function(x: jax.Array, z: jax.Array, i: jax.Array, b: jax.Array) -> Any:
        # sinh is CHLO, which the interpreter does not know.
        y = jax.lax.with_sharding_constraint(
            jnp.sinh(x) @ x.T, NamedSharding(mesh, PartitionSpec(None, "a"))
        )
        return y, z * 2, i + i, ~b, y.astype(jnp.bfloat16), y.astype(jnp.float8_e5m2)

    others = [jax.ShapeDtypeStruct((3,), kind) for kind in ("complex64", "int4", "bool")]
    program = program_of(function, x, *others)
    given = inputs.random(program)
    names = [value.name for value in program.results]
    compared = compare(program.compile("off").run(given), interpret(program, given), names)
    assert compared.equal, compared.first_differing
    with pytest.raises(ReplayError, match="was not done with jit_function after 0.1 s"):
        interpret(program, given, limit_s=0.1)


def test_the_interpreter_tells_what_it_does_not_know() -> None:
    program = program_of(lambda x: jnp.linalg.cholesky(x.T @ x), X)
    with pytest.raises(ReplayError, match="cannot be interpreted: Unsupported op: .*potrf"):
        interpret(program, inputs.random(program))


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
