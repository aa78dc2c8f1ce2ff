"""`python -m benchmarks.gpu` without JAX: what a part, an item and a file of results go through."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support import ROOT

from benchmarks.gpu import machine
from benchmarks.gpu.items import Item, Known, Settings
from benchmarks.gpu.results import Store, file_name
from benchmarks.gpu.running import Children, Runner, without_places
from benchmarks.gpu.tables import markdown, results_section

TESTS = ROOT / "tests"
MACHINE = {"device": "NVIDIA H200", "jax": "0.11.2", "python": "3.12.3", "hloom": "0.1.0"}
SETTINGS = Settings(dry_run=True)

pytestmark = pytest.mark.once


def item(name: str, limit_s: float = 60, **arguments: Any) -> Item:
    return Item(
        name, f"support.devices.gpu_items:{name.partition(' ')[0]}", arguments, limit_s, needs_s=0
    )


@pytest.fixture
def children(tmp_path: Path) -> Children:
    given = os.environ | {"PYTHONPATH": str(TESTS)}
    environment = machine.environment(tmp_path, dry_run=True, given=given)
    return Children(Path(sys.executable), tmp_path, environment)


class Batches:
    """A part."""

    def __init__(self, *batches: Sequence[Item]) -> None:
        self._batches = batches

    def batches(self, known: Known, settings: Settings) -> Iterator[Sequence[Item]]:
        yield from self._batches


def run(children: Children, store: Store, part: Batches, minutes: float = 5) -> bool:
    runner = Runner(children, store, minutes=minutes, jobs=2)
    return runner.run_part(1, part, SETTINGS, "c0ffee")


ENDINGS = {
    "fine": ("ok", None),
    "refuses": ("skipped", "no such thing here"),
    "lacks_a_package": ("skipped", "the package no_such_package_anywhere is not installed"),
    "fails": ("failed", "ValueError: wrong rows"),
    "fills_the_device": ("out of memory", "RuntimeError: RESOURCE_EXHAUSTED: Out of memory"),
    "crashes": ("crashed", "its process ended with signal 6 and no result"),
    "hangs": ("timed out", "it took longer than 2 s"),
}


def test_no_item_loses_another(children: Children, tmp_path: Path) -> None:
    store = Store(tmp_path / "out", MACHINE)
    arguments = {"fine": {"value": 4}, "hangs": {"limit_s": 2}}
    items = [item(name, **arguments.get(name, {})) for name in ENDINGS]
    assert run(children, store, Batches(items[:4], items[4:]))
    [entry] = json.loads(store.file.read_text()).values()
    assert {name: found["status"] for name, found in entry["items"].items()} == {
        name: status for name, (status, _) in ENDINGS.items()
    }
    for name, (_, why) in ENDINGS.items():
        assert entry["items"][name].get("why", "").startswith(why or "")
        assert entry["items"][name]["commit"] == "c0ffee"
    assert entry["items"]["fine"]["result"] == 5
    kept = {name: entry["items"][name].get("partial") for name in ("fails", "crashes", "hangs")}
    assert kept == {"fails": {"so far": 1}, "crashes": {"so far": 2}, "hangs": {"so far": 3}}
    assert "the last words" in entry["items"]["crashes"]["tail"]
    assert "wrong rows" in entry["items"]["fails"]["tail"]
    assert entry["parts"]["1"]["complete"] is True


def test_what_the_time_was_over_for_is_done_the_next_time(
    children: Children, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    part = Batches([item("fine a", value=1)], [item("hangs")], [item("fine b", value=2)])
    store = Store(out, MACHINE)
    assert not run(children, store, part, minutes=4 / 60)
    assert store.known["fine a"]["status"] == "ok"
    assert store.known["hangs"]["status"] == "stopped"
    assert "fine b" not in store.known
    [entry] = json.loads(store.file.read_text()).values()
    assert entry["parts"]["1"] | {"started": "", "finished": ""} == {
        "started": "",
        "finished": "",
        "complete": False,
        "commit": "c0ffee",
        "left": ["hangs"],
    }

    again = Store(out, MACHINE)
    before = dict(again.known["fine a"])
    done = Batches([item("fine a", value=1)], [item("hangs", limit_s=1)], [item("fine b", value=2)])
    assert run(children, again, done)
    assert again.known["fine a"] == before
    assert again.known["hangs"]["status"] == "timed out"
    assert again.known["fine b"]["result"] == 3


def test_nothing_starts_that_the_time_does_not_suffice_for(
    children: Children, tmp_path: Path
) -> None:
    store = Store(tmp_path / "out", MACHINE)
    long = Item("fine", "support.devices.gpu_items:fine", {"value": 1}, needs_s=61)
    assert not run(children, store, Batches([long]), minutes=1)
    assert dict(store.known) == {}


def test_what_an_item_started_ends_with_it(children: Children) -> None:
    entry = children.run(item("leaves_a_process"), 60)
    assert entry["status"] == "ok"
    status = Path(f"/proc/{entry['result']}/stat")
    for _ in range(100):
        if not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    raise AssertionError("it still runs")


def test_after_the_end_nothing_starts(children: Children) -> None:
    children.end()
    assert children.run(item("fine", value=1), 10)["status"] == "stopped"


def test_items_can_be_forgotten_and_brought_along(tmp_path: Path) -> None:
    old = Store(tmp_path / "old", MACHINE)
    for name in ("time/a", "time/b", "step/a/off"):
        old.add(name, {"status": "ok"})
    new = Store(tmp_path / "new", MACHINE, old.file)
    assert new.forget("time/*") == ["time/a", "time/b"]
    assert new.is_done("step/a/off")
    assert not new.is_done("time/a")


@pytest.mark.parametrize("text", ["[1]", "{", '{"0.11.2": {}}', '{"a": 1}'])
def test_a_file_of_something_else_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / file_name("NVIDIA H200")).write_text(text)
    with pytest.raises(ValueError, match=r"is not a file of this benchmark's results"):
        Store(tmp_path, MACHINE)


def wheel(folder: Path, version: str) -> Path:
    file = folder / f"hloom-{version}-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("hloom/__init__.py", f"__version__ = {version!r}")
        archive.writestr(f"hloom-{version}.dist-info/METADATA", f"Name: hloom\nVersion: {version}")
    return file


def test_a_wheel_is_enough(tmp_path: Path) -> None:
    script = "import sys, hloom, numpy; print(hloom.__version__, sys.prefix)"
    for version in ("7.1", "7.2", "7.1"):
        python = machine.python_with_hloom(tmp_path / "work", wheel(tmp_path, version))
        environment = machine.environment(tmp_path / "work", dry_run=True, given={})
        printed = subprocess.run(
            [python, "-c", script],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert printed == f"{version} {python.parents[1]}\n"


def test_without_a_wheel_there_is_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_is_installed", lambda: False)
    monkeypatch.setattr(machine, "WHEELS", tmp_path)
    with pytest.raises(machine.MachineError, match="run `make wheel` where there is a network"):
        machine.python_with_hloom(tmp_path / "work")
    (tmp_path / "hloom-1.whl").write_text("no wheel")
    with pytest.raises(machine.MachineError, match="cannot be unpacked"):
        machine.python_with_hloom(tmp_path / "work")


def test_what_would_change_the_figures_does_not_reach_the_children(tmp_path: Path) -> None:
    given = {
        "HOME": "/h",
        "JAX_HLOOM": "remat",
        "HLOOM_STRICT": "1",
        "JAX_ENABLE_X64": "1",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": ".5",
        "XLA_FLAGS": "--xla_a=1",
        "PYTHONPATH": os.pathsep.join([str(machine.ROOT), "", "/site"]),
    }
    found = machine.environment(tmp_path, dry_run=False, given=given)
    assert not {"JAX_HLOOM", "HLOOM_STRICT", "JAX_ENABLE_X64"} & set(found)
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in found
    assert (found["HOME"], found["XLA_FLAGS"]) == ("/h", "--xla_a=1")
    assert found["JAX_PLATFORMS"] == "cuda,cpu"
    assert found["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert found["PYTHONPATH"] == f"{tmp_path / 'path'}{os.pathsep}/site"
    assert os.listdir(tmp_path / "path") == ["benchmarks"]


def test_results_do_not_tell_where_files_lie() -> None:
    entry = {
        "why": "at /a/b.c/benchmarks/programs/gpt.py:103, not a/benchmarks/x",
        "tail": 'File "/x/lib/python3.12/site-packages/jax/core.py", line 1\n /r/tests/test_x.py',
        "result": [1.5, None, {"ratio": "1/2"}],
    }
    assert without_places(entry) == entry | {
        "why": "at benchmarks/programs/gpt.py:103, not a/benchmarks/x",
        "tail": 'File "site-packages/jax/core.py", line 1\n tests/test_x.py',
    }


STEP = {"temp_bytes": 2**30, "step_bytes": 2**31, "allocator_peak_bytes": 3 * 2**30, "loss": 4.0}


def report() -> dict[str, Any]:
    """As a GPU's results would be."""
    timed = {
        "off": {"step_s": [0.010, 0.011, 0.012], "ratio": [1.0, 1.0, 1.0], "difference": 0.0},
        "capture": {"step_s": [0.008, 0.0088, 0.010], "ratio": [0.7, 0.8, 0.9], "difference": 1e-7},
        "dots_saveable": {"step_s": [0.012] * 3},
        "nothing_saveable": {"step_s": [0.016] * 3},
        "fit, as dots_saveable": {"step_s": [0.009] * 3},
        "fit, as nothing_saveable": {"step_s": [0.012] * 3},
    }
    held = STEP | {"budget_bytes": STEP["step_bytes"]}
    items = {
        "step/gpt/off": {"status": "ok", "result": STEP, "commit": "c0ffee"},
        "step/gpt/capture": {
            "status": "ok",
            "result": STEP | {"loss": 4.4, "peak_is_of_the_compile": True},
            "commit": "c0ffee",
        },
        "step/gpt/remat": {"status": "out of memory", "why": "|", "commit": "c0ffee"},
        "step/gpt/fit": {"status": "failed", "why": "an error", "commit": "c0ffee"},
        "step/gpt/dots_saveable": {"status": "ok", "result": STEP, "commit": "c0ffee"},
        "step/gpt/nothing_saveable": {"status": "ok", "result": STEP, "commit": "c0ffee"},
        "step/gpt/fit, as dots_saveable": {"status": "ok", "result": held, "commit": "c0ffee"},
        "step/gpt/fit, as nothing_saveable": {
            "status": "ok",
            "result": held | {"step_bytes": held["step_bytes"] + 1},
            "commit": "c0ffee",
        },
        "time/gpt": {
            "status": "ok",
            "result": {"ratio_to": "off", "configurations": timed},
            "commit": "c0ffee",
        },
        "test/a": {"status": "skipped", "why": "no | here\nat all", "commit": "c0ffee"},
    }
    smi = ["NVIDIA H200, 580.1, 143771 MiB, 9.0"]
    return {"0.11.2": {"machine": MACHINE | {"nvidia_smi": smi}, "items": items}}


def test_the_readme_has_the_figures_of_committed_results(tmp_path: Path) -> None:
    (tmp_path / "gpu_dry_run.json").write_text(json.dumps(report()))
    assert next(results_section(tmp_path)).startswith("Not measured yet")
    (tmp_path / "gpu_nvidia_h200.json").write_text(json.dumps(report()))
    lines = list(results_section(tmp_path))
    assert lines[0] == "NVIDIA H200, driver 580.1, jax 0.11.2, commit c0ffee:"
    assert lines[1].startswith(
        "7 ok, 1 out of memory, 1 failed, 1 skipped; failed: `step/gpt/fit`. A"
    )
    assert "| gpt | 11 | 2048 |  |  |  |  |" in lines
    assert "| gpt | 0.750 |  | *over* |" in lines
    assert lines[-2].endswith("`fit` takes less time at 1 of 2")


def test_attention_is_timed_by_keys(tmp_path: Path) -> None:
    found = report()
    items = found["0.11.2"]["items"]
    for keys, ratio in ((64, 0.9), (128, 1.1), (256, 0.9), (512, 0.5)):
        program = f"attention, {keys} keys"
        timed = {
            "off": {"step_s": [0.01] * 3, "ratio": [1.0] * 3},
            "attention": {"step_s": [0.01 * ratio] * 3, "ratio": [ratio] * 3},
        }
        items[f"step/{program}/off"] = {"status": "ok", "result": STEP}
        items[f"time/{program}"] = {"status": "ok", "result": {"configurations": timed}}
    (tmp_path / "gpu_nvidia_h200.json").write_text(json.dumps(found))
    lines = list(results_section(tmp_path))
    assert "| attention, 512 keys | 10 | 5 (0.500) |  |" in lines
    assert lines[-1] == "`attention` takes less time from 256 keys on."


def test_what_was_foreseen_stands_beside_what_a_step_took() -> None:
    found = report()
    off = found["0.11.2"]["items"]["step/gpt/off"]
    off["result"] = STEP | {"foreseen_s": 0.0121}
    rows = [line.split(" | ") for line in markdown(found) if line.startswith("| `")]
    by_label = {row[0]: row for row in rows}
    assert by_label["| `off`"][5:8] == ["11 (10 to 12)", "12.1", "+10.0%"]
    assert by_label["| `capture`"][6:8] == ["", ""]
