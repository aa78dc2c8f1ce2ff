"""What the dump of a step, and of a module that was compiled, holds on disk.

The end of a block, and of the program: what waits to be written is written.

Two processes under jax.distributed dump a step: each its share, and together it reads back. Shares
of the arrays of a dump on disk: put together, and what is said of damaged ones.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
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
from support.dumps.snapshots import same_bits, take
from support.dumps.worker import CHOSEN, SHARDINGS, first_state
from support.processes import run_members

from hloom._jax.modules import make_context
from hloom.dumps.collect.tracer import Execution
from hloom.dumps.read.arrays import ArrayShare, read_arrays
from hloom.dumps.read.dump import DumpError, Missing, ModuleDump, open_dump
from hloom.dumps.write.array_files import ARRAYS, SHARDS
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
    elsewhere = jax.jit(lambda x: x + 1).lower(1.0)
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


PROCESSES = (0, 1)
WORKER = "from support.dumps.worker import main; main()"

FINISHES_WITHIN_S = 120
"""Many times what it takes; as in tests/runtime/test_processes.py."""

OVERHEAD_BYTES = 64 * 1024
"""What a share may have beside values: arrays.json. Less than a quarter of the smallest array."""


@dataclass(frozen=True)
class Run:
    """What the two processes wrote, and what each told at its end."""

    folder: Path
    told: tuple[dict[str, Any], ...]

    def module(self, name: str, process: int) -> ModuleDump:
        """The module of that name in the folder of that process."""
        dump = open_dump(self.folder / f"step-{CHOSEN}" / f"process-{process}")
        [module] = [each for each in dump.modules if each.name == name]
        return module


@pytest.fixture(scope="module")
def two_ran(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("dump")
    members = run_members(WORKER, str(folder), devices=2, timeout_s=FINISHES_WITHIN_S)
    for member in members:
        assert member.returncode == 0, member.stderr
        assert "HloomWarning" not in member.stderr
    return Run(folder, tuple(json.loads(member.stdout.splitlines()[-1]) for member in members))


def expected(steps: int) -> dict[str, np.ndarray]:
    """The state after so many steps."""
    state = first_state()
    for _ in range(steps):
        columns = state["columns"] * np.float32(0.5)
        state = {name: -value for name, value in state.items()} | {"columns": columns}
    return state


def named(folders: Sequence[Path]) -> dict[str, np.ndarray]:
    arrays = read_arrays(folders)
    return {
        entry.name: arrays[entry.index] for entry in ArrayShare.open(folders[0]).entries.values()
    }


def test_both_processes_write_into_one_folder(two_ran: Run) -> None:
    assert [child.name for child in two_ran.folder.iterdir()] == [f"step-{CHOSEN}"]
    inside = sorted(child.name for child in (two_ran.folder / f"step-{CHOSEN}").iterdir())
    assert inside == ["manifest.json", "process-0", "process-1"]
    runs = {
        json.loads(file.read_text())["run"]
        for file in two_ran.folder.glob("step-*/**/manifest.json")
        if json.loads(file.read_text())["kind"] != "module"
    }
    assert len(runs) == 1


@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize(("kind", "steps"), [("arguments", CHOSEN), ("results", CHOSEN + 1)])
def test_the_state_reads_back_equal(two_ran: Run, kind: str, steps: int, process: int) -> None:
    folders = two_ran.module("jit_train_step", process).array_folders(kind)
    assert len(folders) == 2
    read = named(folders)
    for name, value in expected(steps).items():
        [mine] = [array for told, array in read.items() if f"'{name}'" in told]
        np.testing.assert_array_equal(mine, value)
        assert mine.dtype == value.dtype
    numbers = [array for array in read.values() if array.ndim == 0]
    assert [n.item() for n in numbers] == ([CHOSEN, 0.5] if kind == "arguments" else [])


@pytest.mark.parametrize("kind", ["arguments", "results"])
def test_no_value_is_in_two_shares(two_ran: Run, kind: str) -> None:
    folders = two_ran.module("jit_train_step", 0).array_folders(kind)
    written: dict[int, np.ndarray] = {}
    for folder in folders:
        for entry in ArrayShare.open(folder).entries.values():
            count = written.setdefault(entry.index, np.zeros(entry.shape, int))
            for shard in entry.shards:
                count[shard.slices] += 1
    assert len(written) == len(SHARDINGS) + (2 if kind == "arguments" else 0)
    for count in written.values():
        np.testing.assert_array_equal(count, 1)


@pytest.mark.parametrize("kind", ["arguments", "results"])
def test_no_byte_is_written_twice(two_ran: Run, kind: str) -> None:
    folders = two_ran.module("jit_train_step", 0).array_folders(kind)
    sizes = [sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) for folder in folders]
    state = first_state().values()
    # The second process has half of what is split between the processes, and nothing else.
    second_bytes = sum(value.nbytes for value in state) // len(SHARDINGS)
    assert sizes[1] < second_bytes + OVERHEAD_BYTES
    assert sum(sizes) < sum(value.nbytes for value in state) + OVERHEAD_BYTES


@pytest.mark.parametrize("process", PROCESSES)
def test_what_a_process_runs_alone_is_its_own(two_ran: Run, process: int) -> None:
    module = two_ran.module("jit_own_step", process)
    [result] = read_arrays(module.array_folders("results")).values()
    after = (10.0 + process) * 2 ** (CHOSEN + 1)
    np.testing.assert_array_equal(result, np.full(3, after, np.float32))
    assert two_ran.told[process]["mine"] == [2 * after] * 3


def test_without_the_other_process_the_share_is_told(two_ran: Run) -> None:
    module = two_ran.module("jit_train_step", 1)
    with pytest.raises(DumpError, match=r"is not whole: \d+ of 65536 values are here"):
        read_arrays([module.folder / "arguments"])


def shares(folder: Path, value: np.ndarray) -> tuple[Path, Path]:
    """The share of each of two processes, made from what one wrote: rows 0 to 3, and 4 to 7."""
    halves = []
    for process in (0, 1):
        half = folder / f"process-{process}"
        take(value[4 * process : 4 * process + 4]).write(half)
        told = json.loads((half / ARRAYS).read_text())
        [entry] = told["arrays"]
        entry |= {"shape": [8], "processes": [0, 1]}
        entry["shards"][0] |= {"start": [4 * process], "stop": [4 * process + 4]}
        (half / ARRAYS).write_text(json.dumps(told))
        halves.append(half)
    return halves[0], halves[1]


def test_shares_of_processes_are_put_together(tmp_path: Path) -> None:
    value = np.arange(8, dtype=np.float32)
    folders = shares(tmp_path, value)
    assert same_bits(read_arrays(folders)[0], value)
    assert same_bits(read_arrays(folders[::-1])[0], value)


def test_a_share_that_is_not_there_is_told(tmp_path: Path) -> None:
    first, _ = shares(tmp_path, np.arange(8, dtype=np.float32))
    with pytest.raises(DumpError) as error:
        read_arrays([first])
    assert str(error.value) == (
        "'value 0' is not whole: 4 of 8 values are here. The module ran in processes 0, 1; each "
        "of them wrote its share. Put the folders of all of them side by side.\n"
        f"Looked at:\n  {first}"
    )


def test_a_module_of_another_process_is_left_out(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    take(jnp.zeros(3)).write(own)
    take(jnp.ones(3)).write(other)
    told = json.loads((other / ARRAYS).read_text())
    told["arrays"][0]["processes"] = [1]
    (other / ARRAYS).write_text(json.dumps(told))
    np.testing.assert_array_equal(read_arrays([own, other])[0], np.zeros(3))
    np.testing.assert_array_equal(read_arrays([other, own])[0], np.ones(3))


def test_damage_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "arguments"
    take(jnp.arange(1000.0)).write(folder)
    shards = folder / SHARDS
    shards.write_bytes(shards.read_bytes()[:-1])
    with pytest.raises(DumpError, match=r"shards\.bin .*shard 0_0 of 'value 0': it ends before"):
        read_arrays([folder])
    told = json.loads((folder / ARRAYS).read_text())
    (folder / ARRAYS).write_text(json.dumps(told | {"offsets": {}}))
    with pytest.raises(DumpError, match=r"shards\.bin .*shard 0_0 of 'value 0': KeyError: '0_0'"):
        read_arrays([folder])
    shards.unlink()
    (folder / ARRAYS).write_text(json.dumps(told))
    with pytest.raises(DumpError, match=r"shards\.bin .*No such file"):
        read_arrays([folder])
    (folder / ARRAYS).write_text('{"arrays": [{}], "offsets": {}}')
    with pytest.raises(DumpError, match=r"arrays\.json cannot be read: arrays\[0\] has no 'name'"):
        read_arrays([folder])
    (folder / ARRAYS).unlink()
    with pytest.raises(DumpError, match=r"arrays\.json cannot be read: No such file"):
        read_arrays([folder])


def test_a_dump_without_arrays_is_told() -> None:
    with pytest.raises(DumpError, match="dump the step with arrays=True"):
        read_arrays([])
