"""The end of a block, and of the program: what waits to be written is written."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from conftest import RunPython
from support.dumps.runs import X, program, train

from hloom.dumps.collect import arrays
from hloom.dumps.read.dump import open_dump
from hloom.dumps.write import array_child
from hloom.dumps.write.array_files import read_arrays


def test_the_end_of_a_block_waits_for_the_writer(tmp_path: Path) -> None:
    step = program()
    train((1, 2, 3), lambda _: step(X), to=tmp_path, steps="*")
    assert sorted(path.name for path in tmp_path.glob("step-*/process-0")) == ["process-0"] * 3


SHORT_RUN = """
import dataclasses
from pathlib import Path
import jax, numpy as np, hloom
from support.dumps.samples import capture, execution
from hloom.dumps import writer
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
    assert ended.stderr == ""
    dumps = [open_dump(ended.waiting / f"step-{step}") for step in range(3)]
    assert [len(dump.modules) for dump in dumps] == [1, 1, 1]
    # Orbax needs thread pools, which the end of a program closes.
    assert dumps[2].modules[0].array_folders("results")
    assert not list(ended.waiting.rglob("*.partial"))


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As at the end of a program, where Orbax cannot write."""

    def write_share(folder: Path, *_: object) -> None:
        folder.mkdir()
        raise OSError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(arrays, "write_share", write_share)
    yield
    array_child.close()


@pytest.mark.usefixtures("no_threads")
def test_arrays_are_written_elsewhere_where_threads_do_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [jnp.arange(6, dtype=jnp.bfloat16), np.float32(3)]
    arrays.snapshot(["x", "y"], given).write(tmp_path / "arguments")
    # One process is there for all that is left: its start is what takes long.
    monkeypatch.setattr(array_child, "_SCRIPT", "raise RuntimeError('another process')")
    arrays.snapshot(["z"], [np.int32(7)]).write(tmp_path / "results")
    found = read_arrays([tmp_path / "arguments"])
    assert found[0].dtype == jnp.bfloat16
    np.testing.assert_array_equal(found[0], given[0])
    assert found[1] == 3
    assert read_arrays([tmp_path / "results"])[0] == 7
    with pytest.raises(OSError, match="File exists"):
        array_child.write_share_elsewhere(tmp_path / "results", (), {})


def test_what_fails_elsewhere_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_child, "_SCRIPT", "raise FileExistsError('it is there already')")
    with pytest.raises(OSError, match="FileExistsError: it is there already"):
        array_child.write_share_elsewhere(tmp_path / "arguments", (), {})


def test_a_process_that_does_not_answer_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(array_child, "_SCRIPT", "import sys; sys.stdin.read()")
    monkeypatch.setattr(array_child, "TIMEOUT_S", 0.0)
    with pytest.raises(OSError, match="the arrays were not written 0 s after the end"):
        array_child.write_share_elsewhere(tmp_path / "arguments", (), {})


def test_a_process_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_child, "_SCRIPT", "import time; time.sleep(600)")
    monkeypatch.setattr(array_child, "_END_S", 0.0)
    child = array_child._Child()
    child.close()
    assert child._process.returncode == -signal.SIGKILL
