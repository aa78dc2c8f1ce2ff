"""Dumps that somebody made to do harm: each is refused in a line, or is harmless.

Around every dump lie traps: files that must not be read, files that must not be written, programs
that leave a mark when they are started. A process of its own, which notes what it opens, runs all
commands; it ends in time or the test fails.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from support import ROOT
from support.dumps.hostile_edits import HOSTILE, MODULE, SECRET
from support.dumps.report_dumps import edit_manifest
from support.dumps.samples import capture, execution

from hloom.dumps.write.writer import write_step

pytestmark = [pytest.mark.once, pytest.mark.long]

STEP = MODULE.split("/")[0]

LIMIT_S = 240
"""For all dumps together, on a machine that is busy; most take less than a tenth of a second."""


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump in which nothing is wrong, with programs that nobody should start."""

    def small(x: Any) -> Any:
        return jnp.sin(x) + jnp.sin(x)

    to = tmp_path_factory.mktemp("good")
    write_step(capture(to, [execution(small, (jnp.arange(3.0),), spec="cse")]))
    return to


BESIDE = (
    "controls",
    "half_a_character",
    "huge_curve",
    "huge_numbers",
    "manifest_is_a_link",
    "names_outside",
    "report_is_a_link",
    "state_is_a_fifo",
)
"""What is also reported beside another dump, which reads no file that a report does not read."""


@dataclass(frozen=True)
class Outcome:
    """What one command did."""

    command: str
    status: object
    out: str
    err: str
    touched: list[str]


@pytest.fixture(scope="module")
def outcomes(
    good: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, list[Outcome]]]:
    """Of each dump whose case was chosen its folder and what the commands did, in one process."""
    to = tmp_path_factory.mktemp("hostile")
    ours = (item for item in request.session.items if item.path == request.path)
    chosen = [each.callspec.params["dump"] for each in ours if hasattr(each, "callspec")]
    jobs = []
    for name in chosen:
        hostile = HOSTILE[name]
        folder, outside = to / name, to / name / "outside"
        shutil.copytree(good, folder)
        outside.mkdir()
        for file in ("secret", "victim"):
            (outside / file).write_text(SECRET)
        module = folder / MODULE
        (module / "bin").mkdir()
        for program in ("ptxas", "nvlink", "fatbinary"):
            trap = module / "bin" / program
            trap.write_text(f"#!/bin/sh\necho {program} > {outside}/started\n")
            trap.chmod(0o755)
        hostile.edit(module, outside)
        watched = [str(outside / each) for each in ("", "secret", "victim", "written", "started")]
        for command in hostile.commands:
            first, *more = command.split()
            words = [first, str(folder / hostile.module), *more, *hostile.words]
            if first == "replay":
                words += ["--repeat", "0"]
            jobs.append({"words": words, "outside": [*watched, "/etc/passwd", "/dev/zero"]})
        if name in BESIDE:
            # One that nobody has harmed: in an index with it, and side by side.
            fine = Path(shutil.copytree(good / STEP, folder / "step-9"))
            # An index lists the folder in which they all lie.
            jobs.append({"words": ["report", str(folder)], "outside": watched[1:]})
            words = ["report", str(folder / STEP), str(fine)]
            jobs.append({"words": words, "outside": watched})
    (to / "jobs.json").write_text(json.dumps(jobs))
    told = to / "outcomes.json"
    done = subprocess.run(
        [
            sys.executable,
            ROOT / "tests" / "support" / "dumps" / "hostile.py",
            to / "jobs.json",
            told,
        ],
        env=os.environ | {"COLUMNS": "200", "HLOOM_STRICT": "0"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    found = [json.loads(line) for line in told.read_text().splitlines()]
    assert len(found) == len(jobs), f"{jobs[len(found)]['words']} ended it: {done.stderr[-2000:]}"
    rows = iter(found)
    return {
        name: (
            to / name,
            [
                Outcome(command, row["status"], row["out"], row["err"], row["touched"])
                for command, row in zip(commands_of(name), rows, strict=False)
            ],
        )
        for name in chosen
    }


def commands_of(name: str) -> list[str]:
    """What is run on it, in order."""
    return [*HOSTILE[name].commands, *(["report index", "report two"] if name in BESIDE else [])]


@pytest.mark.parametrize("dump", HOSTILE)
def test_it_is_refused_in_a_line_or_harmless(
    dump: str, outcomes: dict[str, tuple[Path, list[Outcome]]]
) -> None:
    hostile = HOSTILE[dump]
    folder, ran = outcomes[dump]
    for each in ran:
        assert each.status in (0, 1), f"{each.command}: {each.status}"
        assert "Traceback" not in each.err
        assert each.touched == []
        shown = each.out + each.err
        hidden = [c for c in shown if not c.isprintable() and c not in "\n\t"]
        assert hidden == [], each.command
        assert SECRET not in shown
        if each.status == 1 and not each.out:
            assert each.err.startswith(f"hloom {each.command.split()[0]}: error: ")
            assert "Errno" not in each.err
    assert ran[0].status == hostile.status, ran[0].err
    assert hostile.said in " ".join((ran[0].out + ran[0].err).split())
    outside = folder / "outside"
    left = {file.name for file in outside.iterdir()}
    assert left == {"secret", "victim"}
    assert (outside / "victim").read_text() == SECRET
    written = (MODULE + "/report.html", "report.html", "step-9/comparison.html")
    if dump in BESIDE:
        assert [each.status for each in ran[-2:]] == [0, 0], ran[-2:]
        assert all((folder / each).is_file() for each in written[1:])
    for page in (folder / each for each in written):
        if not page.is_file() or page.is_symlink():
            continue
        html = page.read_text(encoding="utf-8")
        assert "default-src 'none'" in html
        assert SECRET not in html
        assert not any(c in html for c in "\x1b\u202e\u2066\x9b")


def test_there_are_enough_of_them() -> None:
    assert len(HOSTILE) > 40


@pytest.mark.h100
def test_programs_of_a_dump_are_not_started(good: Path, tmp_path: Path) -> None:
    """The options that made XLA start the dump's own ptxas and nvlink, on a compile for a GPU."""
    dump = Path(shutil.copytree(good, tmp_path / "dump"))
    module = dump / MODULE
    mark = tmp_path / "started"
    (module / "bin").mkdir()
    for program in ("ptxas", "nvlink"):
        trap = module / "bin" / program
        trap.write_text(f"#!/bin/sh\necho {program} >> {mark}\nexit 1\n")
        trap.chmod(0o755)
    edit_manifest(
        module,
        platform="cuda",
        compile_options={
            "xla_gpu_cuda_data_dir": str(module),
            "xla_gpu_enable_libnvptxcompiler": "False",
            "xla_gpu_libnvjitlink_mode": "LIB_NV_JIT_LINK_MODE_DISABLED",
        },
    )
    command = [sys.executable, "-m", "hloom", "replay", str(module), "--target", "h100_sxm"]
    refused, without = (
        subprocess.run(
            [*command, *more], capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        for more in ([], ["--no-options"])
    )
    assert refused.returncode == 1
    assert refused.stderr.startswith(
        "hloom replay: error: the manifest sets xla_gpu_cuda_data_dir to "
    )
    assert without.returncode == 0, without.stderr
    assert not mark.exists()
