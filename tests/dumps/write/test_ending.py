"""The end of a block, and of the program: what waits to be written is written."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from support import RunPython
from support.dumps.runs import X, program, train

from hloom.dumps.read.dump import open_dump
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
