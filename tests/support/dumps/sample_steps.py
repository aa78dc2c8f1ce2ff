"""Dumps that the tests of what reads them share: made once, and left as they are."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from hloom.dumps.collect.store import LiveModule
from hloom.dumps.collect.tracer import Execution
from hloom.dumps.read.dump import open_dump
from hloom.dumps.read.module import ModuleDump
from hloom.dumps.write.writer import write_step
from support.dumps import report_dumps
from support.dumps.samples import capture, execution


@pytest.fixture(scope="session")
def sample_execution() -> Execution:
    """A training step that ran under remat. Its arrays can be written only once."""
    return execution()


@pytest.fixture(scope="session")
def ran(sample_execution: Execution) -> Execution:
    """The same without its arrays."""
    return dataclasses.replace(sample_execution, arguments=None, results=None)


@pytest.fixture(scope="session")
def live(ran: Execution) -> LiveModule:
    """What is known of its module."""
    assert ran.kept is not None
    return ran.kept


@pytest.fixture(scope="session")
def sample_step(sample_execution: Execution, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dump of that step, with its arrays."""
    return write_step(capture(tmp_path_factory.mktemp("sample"), [sample_execution])).parent


@pytest.fixture(scope="session")
def sample_module(sample_step: Path) -> ModuleDump:
    """Its module."""
    return open_dump(sample_step).modules[0]


@pytest.fixture
def copied_module(sample_module: ModuleDump, tmp_path: Path) -> Path:
    """A copy of its folder, which a test may change."""
    return Path(shutil.copytree(sample_module.folder, tmp_path / sample_module.folder.name))


@pytest.fixture(scope="session")
def report_step(ran: Execution, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump with something in every section of a report."""
    return report_dumps.write_dump(tmp_path_factory.mktemp("report"), ran)
