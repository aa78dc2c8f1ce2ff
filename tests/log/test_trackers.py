"""`hloom.log_to`: figures in TensorBoard's files, and in Weights & Biases and MLflow offline."""

from __future__ import annotations

import dataclasses
import logging
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.records import MIB, recorded

import hloom
from hloom import record

pytestmark = pytest.mark.once

FIRST = recorded(temp_bytes=30 * MIB)
NEWEST = recorded(compiles=3)
SMALL = dataclasses.replace(FIRST, module="jit_iota", changed=False, temp_bytes=0)

STEP_BYTES = "hloom/jit_train_step/step_bytes"


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The records of a process that has compiled three programs, one of them twice."""
    lambda_ = dataclasses.replace(SMALL, module="jit_<lambda>")
    monkeypatch.setattr(record, "_records", [FIRST, SMALL, lambda_, NEWEST])


class Function:
    """A tracker of one's own."""

    def __init__(self) -> None:
        self.rows: list[tuple[Mapping[str, float], int]] = []

    def __call__(self, figures: Mapping[str, float], step: int) -> None:
        self.rows.append((figures, step))


def test_the_newest_compile_of_each_program_that_takes_memory_is_logged() -> None:
    tracker = Function()
    figures = hloom.log_to(tracker, step=7)
    assert tracker.rows == [(figures, 7)]
    assert figures[STEP_BYTES] == 13 * MIB
    assert figures["hloom/jit_train_step/compiles"] == 3
    assert figures["hloom/jit_train_step/changed"] == 1
    numbers = {name for name, value in NEWEST.summary().items() if not isinstance(value, str)}
    assert set(figures) == {f"hloom/jit_train_step/{name}" for name in numbers}


def test_programs_are_chosen_by_name() -> None:
    assert {key.split("/")[1] for key in hloom.log_to(Function(), name="iota")} == {"jit_iota"}
    found = hloom.log_to(Function(), name="*")
    assert {key.split("/")[1] for key in found} == {"jit_train_step", "jit_iota", "jit__lambda_"}


def test_nothing_is_logged_of_a_process_without_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "_records", [])
    tracker = Function()
    assert hloom.log_to(tracker) == {}
    assert not tracker.rows


def test_a_logger_gets_a_line_a_program(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("trainer")
    with caplog.at_level(logging.INFO, "trainer"):
        figures = hloom.log_to(logger, step=7)
        hloom.log_to(logging.LoggerAdapter(logger), name="*")
    first, *others = caplog.messages
    program, *told = first.split()
    assert (program, told[:2]) == ("hloom/jit_train_step,", ["step", "7:"])
    words = dict(each.split("=") for each in told[2:])
    assert {
        f"hloom/jit_train_step/{name}": float(value) for name, value in words.items()
    } == figures
    assert len(others) == 3


def test_another_tracker_is_refused() -> None:
    with pytest.raises(TypeError, match="a dict has none of the methods log_metrics, add_scalar"):
        hloom.log_to({})


def scalars(folder: Path) -> Iterator[tuple[str, float, int]]:
    """The scalars in TensorBoard's files: records of a length, a checksum, an event, a checksum."""
    from tensorboardX.proto.event_pb2 import Event

    [file] = folder.iterdir()
    data = file.read_bytes()
    while data:
        [size] = struct.unpack("<Q", data[:8])
        event = Event.FromString(data[12 : 12 + size])
        yield from ((each.tag, each.simple_value, event.step) for each in event.summary.value)
        data = data[16 + size :]


def test_tensorboard(tmp_path: Path) -> None:
    writer = pytest.importorskip("tensorboardX").SummaryWriter(str(tmp_path))
    figures = hloom.log_to(writer, step=3)
    writer.close()
    assert set(scalars(tmp_path)) == {
        (name, struct.unpack("f", struct.pack("f", value))[0], 3) for name, value in figures.items()
    }


def offline_file(folder: Path) -> str:
    """What a run of Weights & Biases wrote for a later upload. Its service writes until stopped."""
    import wandb

    wandb.teardown()
    [file] = folder.rglob("*.wandb")
    return file.read_bytes().decode(errors="replace")


def test_weights_and_biases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures join the row of the program's next call, and take no step of their own."""
    monkeypatch.setenv("WANDB_SILENT", "true")
    wandb: Any = pytest.importorskip("wandb")
    with wandb.init(mode="offline", project="hloom", dir=tmp_path) as run:
        run.log({"loss": 2.0})
        figures = hloom.log_to(run)
        run.log({"loss": 1.0})
        logged = dict(run.summary)
        assert {name: logged[name] for name in figures} == figures
        assert (logged["loss"], logged["_step"]) == (1.0, 1)
    assert STEP_BYTES in offline_file(tmp_path)


def test_the_last_figures_of_a_run_of_weights_and_biases_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the program logs nothing after them, through the module."""
    monkeypatch.setenv("WANDB_SILENT", "true")
    wandb: Any = pytest.importorskip("wandb")
    wandb.init(mode="offline", project="hloom", dir=tmp_path)
    hloom.log_to(wandb, step=5)
    wandb.finish()
    assert STEP_BYTES in offline_file(tmp_path)


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.chdir(tmp_path)
    mlflow: Any = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run() as run:
        figures = hloom.log_to(mlflow, step=2)
    assert mlflow.get_run(run.info.run_id).data.metrics == figures
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, STEP_BYTES)
    assert [(each.value, each.step) for each in history] == [(13 * MIB, 2)]
