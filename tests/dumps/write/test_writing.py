"""What the dump of a step, and of a module that was compiled, holds on disk.

The end of a block, and of the program: what waits to be written is written.
"""

from __future__ import annotations

import dataclasses
import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.mlir import ir
from jax.sharding import NamedSharding, PartitionSpec
from support import RunPython
from support.dumps.runs import X, program, train
from support.dumps.samples import capture, scanned_step, step_arguments

from hloom._jax.modules import make_context
from hloom.dumps.collect.tracer import Execution
from hloom.dumps.read.dump import DumpError, Missing, open_dump
from hloom.dumps.write.array_files import read_arrays
from hloom.dumps.write.manifest import MAX_LINES, input_facts, sources
from hloom.dumps.write.module import write_execution, write_module
from hloom.dumps.write.writer import write_step

PASSES = ["inline", "drop-constraints", "cse", "free-constants", "remat"]
"""What `remat` runs, in order."""


def test_a_step_is_read_back_as_it_was_written(tmp_path: Path, ran: Execution) -> None:
    process = write_step(capture(tmp_path, [ran]))
    assert process == tmp_path / "step-3" / "process-0"
    dump = open_dump(tmp_path)
    assert (dump.path, dump.kind, dump.step, dump.processes) == (
        tmp_path / "step-3",
        "step",
        3,
        (0,),
    )
    [module] = dump.modules
    assert (module.name, module.step, module.process) == ("jit_scanned_step", 3, 0)
    labels = [state.label for state in module.states]
    assert labels == ["input", "after inline", "after cse", "after remat"]
    assert [state.index for state in module.states] == [0, 1, 3, 5]
    assert [plan.name for plan in module.planned] == PASSES
    assert module.planned[-1].json["tables"]
    assert module.spec == "remat"
    assert module.memory is not None
    assert module.memory["step_bytes"] == sum(
        sign * module.memory[name]
        for name, sign in {
            "argument_bytes": 1,
            "output_bytes": 1,
            "alias_bytes": -1,
            "temp_bytes": 1,
        }.items()
    )
    assert "is_scheduled=true" in (module.text("xla/optimized_hlo.txt") or "")
    assert module.failure is None
    assert (module.attempts, module.captured) == ([], None)


def test_bytecode_is_written_as_the_text_of_the_module(tmp_path: Path, ran: Execution) -> None:
    write_step(capture(tmp_path, [ran]))
    [module] = open_dump(tmp_path).modules
    lowered = jax.jit(scanned_step).lower(*step_arguments())
    text = lowered.compiler_ir("stablehlo").operation.get_asm(enable_debug_info=False)
    with make_context():
        read = ir.Module.parse(module.states[0].text)
        assert str(read) == str(text)
        assert "samples.py" in module.states[0].text, "with locations"


def test_a_manifest_tells_what_it_takes_to_compile_it_again(tmp_path: Path, ran: Execution) -> None:
    write_step(capture(tmp_path, [ran]))
    [module] = open_dump(tmp_path).modules
    manifest = module.manifest
    assert manifest["passes"] == PASSES
    assert manifest["target"]["memory_bytes"] == 1 << 30
    assert manifest["devices"] == [{"id": 0, "process": 0, "kind": "cpu"}]
    assert manifest["versions"]["jax"] == jax.__version__
    assert set(manifest["versions"]) == {"hloom", "jax", "jaxlib", "python", "xla"}
    assert manifest["flags"]["XLA_FLAGS"] == os.environ["XLA_FLAGS"]
    assert manifest["flags"]["HLOOM_STRICT"] == "1"
    assert manifest["flags"]["jax_enable_x64"] is False
    assert [(each["name"], each["type"]) for each in manifest["arguments"]] == [
        ("state['w']", "tensor<6x16x16xf32>"),
        ("batch", "tensor<512x16xf32>"),
    ]
    assert [each["type"] for each in manifest["results"]] == ["tensor<6x16x16xf32>", "tensor<f32>"]
    assert manifest["error"] is None
    lines = next(
        found["lines"] for file, found in manifest["sources"].items() if file.endswith("samples.py")
    )
    assert any("jax.nn.gelu" in line for line in lines.values())


def test_every_file_is_in_the_manifest(tmp_path: Path, ran: Execution) -> None:
    process = write_step(capture(tmp_path, [ran]))
    folder = process / "jit_scanned_step-0"
    files = json.loads((folder / "manifest.json").read_text())["files"]
    there = {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}
    assert set(files) == there - {"manifest.json"}
    assert all((folder / name).stat().st_size == facts["bytes"] for name, facts in files.items())


def test_arguments_and_results_are_written_beside_the_module(sample_step: Path) -> None:
    [module] = open_dump(sample_step / "process-0").modules
    assert module.array_folders("arguments") == (module.folder / "arguments",)
    found = read_arrays(module.array_folders("arguments"))
    given = jax.tree.leaves(step_arguments())
    assert sorted(found) == [0, 1]
    np.testing.assert_array_equal(found[0], given[0])
    np.testing.assert_array_equal(found[1], given[1])
    assert sorted(read_arrays(module.array_folders("results"))) == [0, 1]


def test_shardings_and_donation_come_from_the_module() -> None:
    mesh = jax.make_mesh((8,), ("d",))
    along = NamedSharding(mesh, PartitionSpec("d"))
    x = jax.device_put(jnp.ones((8, 8)), along)
    lowered = jax.jit(lambda x, y: (x + 1, y.sum()), donate_argnums=0).lower(x, jnp.ones((4,)))
    module = lowered.compiler_ir("stablehlo")
    signature = input_facts(module, str(module))
    first, second = signature["arguments"]
    assert (first["type"], first["donated"]) == ("tensor<8x8xf32>", True)
    assert '"d"' in str(first["sharding"])
    assert (second["type"], second["donated"]) == ("tensor<4xf32>", False)
    assert [each["type"] for each in signature["results"]] == ["tensor<8x8xf32>", "tensor<f32>"]
    assert list(signature["meshes"].values()) == ['#sdy.mesh<["d"=8]>']


def test_the_input_s_hash_does_not_depend_on_locations() -> None:
    module = jax.jit(lambda x: x + 1).lower(1.0).compiler_ir("stablehlo")
    elsewhere = jax.jit(
        lambda x: x + 1,
    ).lower(1.0)
    other = elsewhere.compiler_ir("stablehlo")
    hashes = {input_facts(each, "")["input_sha256"] for each in (module, other)}
    assert len(hashes) == 1
    different = jax.jit(lambda x: x + 2).lower(1.0).compiler_ir("stablehlo")
    assert input_facts(different, "")["input_sha256"] not in hashes


def test_sources_name_the_lines_and_bound_them(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("first\nsecond\n" + "long" * 1000 + "\n")
    text = f'#a = loc("{file}":2:4 to :8)\n#b = loc("{file}":3:1)\n#c = loc("/gone.py":7:0)\n'
    found: Any = sources(text)
    assert found[str(file)]["lines"]["2"] == "second"
    assert len(found[str(file)]["lines"]["3"]) == 500
    assert len(found[str(file)]["sha256"]) == 64
    assert found["/gone.py"] == {"sha256": None, "lines": {}}
    many = "\n".join(f'loc("/gone-{line // 10}.py":{line}:1)' for line in range(2 * MAX_LINES))
    assert len(sources(many)) == MAX_LINES // 10


def test_modules_of_one_name_are_numbered_in_order(tmp_path: Path, ran: Execution) -> None:
    bare = Execution("jit_f", ran.executable, None)
    odd = Execution("../jit <lambda> " + "x" * 300, ran.executable, None)
    process = write_step(capture(tmp_path, [bare, ran, bare, odd]))
    names = sorted(folder.name for folder in process.iterdir() if folder.is_dir())
    assert names[1:] == ["jit_f-0", "jit_f-1", "jit_scanned_step-0"]
    assert names[0].startswith("_jit__lambda__")
    assert {module.name for module in open_dump(process).modules} >= {odd.name, "jit_f"}


def test_an_error_of_a_run_and_of_a_step_are_told(tmp_path: Path, ran: Execution) -> None:
    failed = dataclasses.replace(ran, error="XlaRuntimeError: out of memory")
    write_step(capture(tmp_path, [failed], error="ValueError: no data"))
    dump = open_dump(tmp_path / "step-3" / "process-0")
    assert dump.manifest["error"] == "ValueError: no data"
    assert dump.modules[0].manifest["error"] == "XlaRuntimeError: out of memory"


def test_what_a_step_has_not_is_told(tmp_path: Path) -> None:
    given = Missing("modules", "nothing ran", "run something")
    write_step(dataclasses.replace(capture(tmp_path, []), missing=(given,)))
    [missing] = open_dump(tmp_path).missing
    assert str(missing) == "process-0: modules: nothing ran (run something)"


def test_what_was_not_kept_is_missing_with_the_reason(tmp_path: Path, ran: Execution) -> None:
    given = Missing("states of the module", "it was compiled before", "set HLOOM_DUMP_TO")
    write_step(capture(tmp_path, [Execution("jit_f", ran.executable, None, (given,))]))
    dump = open_dump(tmp_path)
    assert dump.modules[0].input_file is None
    assert dump.modules[0].memory is not None, "XLA's side is there all the same"
    [told] = [each for each in dump.missing if "states" in each.what]
    assert str(told) == (
        "process-0/jit_f-0: states of the module: it was compiled before (set HLOOM_DUMP_TO)"
    )


# At a compile.


def test_a_compiled_module_has_a_folder_of_its_own(tmp_path: Path, ran: Execution) -> None:
    assert ran.kept is not None
    folders = [write_module(ran.kept, ran.executable, tmp_path / "new") for _ in range(2)]
    assert [folder and folder.name for folder in folders] == [
        "jit_scanned_step-0",
        "jit_scanned_step-1",
    ]
    assert sorted((tmp_path / "new").iterdir()) == folders, "and nothing else is left"
    with pytest.raises(DumpError, match="holds 2 dumps; give one of them: "):
        open_dump(tmp_path / "new")
    dump = open_dump(str(folders[1]))
    assert (dump.kind, dump.step, dump.modules[0].spec) == ("module", None, "remat")
    assert dump.missing == ()


def test_without_a_root_a_compiled_module_goes_to_a_temporary_folder(
    tmp_path: Path, ran: Execution, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert ran.kept is not None
    folder = write_module(ran.kept, None, None)
    assert folder is not None
    assert folder.parent == tmp_path
    assert open_dump(folder).modules[0].memory is None


def test_threads_that_compile_at_once_never_share_a_folder(tmp_path: Path, ran: Execution) -> None:
    assert ran.kept is not None
    small = dataclasses.replace(ran.kept, files={"failure.txt": "why"})
    with ThreadPoolExecutor(8) as pool:
        folders = set(pool.map(lambda _: write_module(small, None, tmp_path), range(40)))
    assert len(folders) == 40
    assert {path.name for path in tmp_path.iterdir()} == {
        f"jit_scanned_step-{number}" for number in range(40)
    }


def test_the_module_s_own_writer_raises(tmp_path: Path, ran: Execution) -> None:
    with pytest.raises(FileNotFoundError):
        write_execution(ran, tmp_path / "no" / "jit_f-0", step=3)


def test_the_end_of_a_block_waits_for_the_writer(tmp_path: Path) -> None:
    step = program()
    train((1, 2, 3), lambda _: step(X), to=tmp_path, steps="*")
    assert sorted(path.name for path in tmp_path.glob("step-*/process-0")) == ["process-0"] * 3


SHORT_RUN = """
import dataclasses
from pathlib import Path
import jax, numpy as np, hloom
from support.dumps.samples import capture, execution
from hloom.dumps.write import writer
step = jax.jit(lambda x: x * 2.0)
for n in range(5):
    with hloom.step(n):
        step(np.ones(3, np.float32))
ran = execution(lambda x: x + 1.0, (np.ones(3, np.float32),), spec="cse")
without_arguments = dataclasses.replace(ran, arguments=None)
bare = dataclasses.replace(without_arguments, results=None)
for n, each in enumerate([bare, bare, without_arguments]):
    writer.submit(capture(Path(ROOT), [each], step=n))
"""


@dataclass(frozen=True)
class Ended:
    """What a program left that came to its end right after the last step."""

    chosen: Path
    waiting: Path
    temporary: Path
    stderr: str


@pytest.fixture(scope="module")
def ended(run_python: RunPython, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    chosen, waiting, temporary = (
        tmp_path_factory.mktemp(name) for name in ("chosen", "waiting", "temporary")
    )
    result = run_python(
        SHORT_RUN.replace("ROOT", repr(str(waiting))),
        HLOOM_DUMP_TO=str(chosen),
        HLOOM_DUMP_STEPS="1:5:2",
        TMPDIR=str(temporary),
    )
    return Ended(chosen, waiting, temporary, result.stderr)


def test_a_process_writes_its_steps(ended: Ended) -> None:
    assert sorted(path.name for path in ended.chosen.iterdir()) == ["step-1", "step-3"]
    folder = ended.chosen / "step-3" / "process-0"
    manifest = json.loads((folder / "manifest.json").read_text())
    [module] = manifest["modules"]
    assert module["complete"]
    assert (folder / module["folder"] / "00-input.mlir").read_text().startswith(("module", "#loc"))
    assert not list(ended.temporary.iterdir())


def test_what_waits_at_the_end_of_the_program_is_written(ended: Ended) -> None:
    written = (ended.chosen, (1, 3)), (ended.waiting, (0, 1, 2))
    assert ended.stderr.splitlines() == [
        f"hloom: wrote {folder}/step-{step}" for folder, steps in written for step in steps
    ]
    dumps = [open_dump(ended.waiting / f"step-{step}") for step in range(3)]
    assert [len(dump.modules) for dump in dumps] == [1, 1, 1]
    results = read_arrays(dumps[2].modules[0].array_folders("results"))
    np.testing.assert_array_equal(results[0], np.full(3, 2, np.float32))
    assert not list(ended.waiting.rglob("*.partial"))
