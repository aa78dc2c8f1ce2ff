"""What a dump tells a replay: arguments, results, target and options."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from support.dumps.replay_programs import MAIN, X, text_of

from hloom.dumps.read.dump import open_dump
from hloom.dumps.read.module import ModuleDump
from hloom.passes.framework.target import Speed, Target
from hloom_tools.replay import ReplayError
from hloom_tools.replay import arguments as inputs
from hloom_tools.replay.comparison import compare
from hloom_tools.replay.manifest import target
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
