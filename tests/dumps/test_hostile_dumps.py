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
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from support import ROOT
from support.dumps.report_dumps import edit_manifest
from support.dumps.samples import capture, execution

from hloom.dumps.write.writer import write_step

pytestmark = pytest.mark.once

MODULE = "step-3/process-0/jit_small-0"
SECRET = "the content of a file that is none of the dump's"
CONTROLS = "\x1b]52;c;cHduZWQ=\x07\x1b[2J\u202egnp.\u2066\x9b31m[/red]"
"""Steers a terminal, turns text around, and is no markup."""

LIMIT_S = 240
"""For all dumps together, on a machine that is busy; most take less than a tenth of a second."""

Edit = Callable[[Path, Path], None]


@dataclass(frozen=True)
class Hostile:
    """A dump that is made by an edit of a good one.

    Attributes:
      edit: given the module's folder and a folder outside of the dump.
      commands: what is run on it.
      said: what of the first command's output says why; empty where it is merely harmless.
      status: of the first command.
      module: what is given to the commands, from the dump.
    """

    edit: Edit
    commands: tuple[str, ...] = ("replay",)
    said: str = ""
    status: int = 1
    module: str = MODULE
    words: tuple[str, ...] = field(default=())


def manifest(**entries: object) -> Edit:
    return lambda folder, _: edit_manifest(folder, **entries)


def options(**given: object) -> Edit:
    """A manifest with these options of XLA; "{dump}" and "{outside}" stand for the folders."""

    def edit(folder: Path, outside: Path) -> None:
        names = {"dump": str(folder), "outside": str(outside)}
        values = {k: v.format(**names) if isinstance(v, str) else v for k, v in given.items()}
        edit_manifest(folder, platform="cpu", compile_options=values)

    return edit


def written(name: str, content: str | bytes) -> Edit:
    def edit(folder: Path, _: Path) -> None:
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content.encode() if isinstance(content, str) else content)

    return edit


def linked(name: str, to: str = "secret") -> Edit:
    """A link in the place of a file or a folder."""

    def edit(folder: Path, outside: Path) -> None:
        place = folder / name
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place)
        place.unlink(missing_ok=True)
        place.symlink_to(outside / to if not to.startswith("/") else to)

    return edit


def fifo(name: str) -> Edit:
    def edit(folder: Path, _: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return edit


def large(name: str) -> Edit:
    def edit(folder: Path, _: Path) -> None:
        os.truncate(folder / name, 2**41)

    return edit


def replaced(old: str, new: str) -> Edit:
    """The module with another text in it."""

    def edit(folder: Path, _: Path) -> None:
        file = folder / "00-input.mlir"
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new, 1))

    return edit


def called(call: str) -> Edit:
    """A module that does nothing but this to its argument."""

    def edit(folder: Path, _: Path) -> None:
        (folder / "00-input.mlir").write_text(
            "module @jit_small {\n  func.func public @main(%arg0: tensor<3xf32>) -> tensor<3xf32> "
            f"{{\n    %0 = {call} : (tensor<3xf32>) -> tensor<3xf32>\n"
            "    return %0 : tensor<3xf32>\n  }\n}\n"
        )

    return edit


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


def shards_link(folder: Path, outside: Path) -> None:
    file = folder / "arguments" / "shards.bin"
    shutil.copy(file, outside / "secret")
    file.unlink()
    file.symlink_to(outside / "secret")


def huge_array(folder: Path, _: Path) -> None:
    file = folder / "arguments" / "arrays.json"
    told = json.loads(file.read_text())
    told["arrays"][0]["shape"] = [2**40]
    file.write_text(json.dumps(told))


def array_outside(folder: Path, _: Path) -> None:
    file = folder / "arguments" / "arrays.json"
    told = json.loads(file.read_text())
    told["arrays"][0]["shards"][0] |= {"start": [0], "stop": [2**40]}
    file.write_text(json.dumps(told))


def huge_argument(folder: Path, _: Path) -> None:
    file = folder / "00-input.mlir"
    file.write_text(file.read_text().replace("tensor<3xf32>", "tensor<3000000x1000000xf32>"))


BOTH = ("report --text", "report")
ALL = (*BOTH, "replay", "bisect")

HOSTILE: dict[str, Hostile] = {
    # Options of XLA.
    "cuda_data_dir": Hostile(
        options(
            xla_gpu_cuda_data_dir="{dump}",
            xla_gpu_enable_libnvptxcompiler="False",
            xla_gpu_libnvjitlink_mode="LIB_NV_JIT_LINK_MODE_DISABLED",
        ),
        ("replay", "bisect"),
        "the manifest sets xla_gpu_cuda_data_dir to ",
    ),
    "libnvptxcompiler": Hostile(
        options(xla_gpu_enable_libnvptxcompiler="False"), said="xla_gpu_enable_libnvptxcompiler"
    ),
    "ptx_file": Hostile(options(xla_gpu_ptx_file="{outside}/secret"), said="xla_gpu_ptx_file"),
    "llvm_ir_file": Hostile(options(xla_gpu_llvm_ir_file="x"), said="xla_gpu_llvm_ir_file"),
    "extra_options": Hostile(
        options(xla_backend_extra_options="xla_cpu_foo"), said="xla_backend_extra_options"
    ),
    "autotune_results": Hostile(
        options(xla_gpu_dump_autotune_results_to="{outside}/written"),
        said="xla_gpu_dump_autotune_results_to",
    ),
    "autotune_cache": Hostile(
        options(xla_gpu_per_fusion_autotune_cache_dir="{outside}"), said="autotune_cache_dir"
    ),
    "unknown_with_path": Hostile(options(xla_new_thing="{outside}/written"), said="xla_new_thing"),
    "wrong_type": Hostile(
        options(xla_cpu_enable_fast_math="{outside}"), said="xla_cpu_enable_fast_math"
    ),
    "huge_value": Hostile(options(xla_cpu_prefer_vector_width=10**20), said="which it cannot be"),
    "control_in_option": Hostile(options(**{f"xla_{CONTROLS}": "/x"}), said="\\x1b]52"),
    "dump_to": Hostile(
        options(xla_dump_to="{outside}/written", xla_dump_hlo_as_text="True", xla_odd="1"),
        said="left out of the dump's options of XLA: xla_dump_hlo_as_text, xla_dump_to, xla_odd",
        status=0,
    ),
    "options_are_a_list": Hostile(manifest(platform="cpu", compile_options=[1]), status=0),
    # Code.
    "machine_code": Hostile(
        called('stablehlo.custom_call @triton_kernel_call_ffi(%arg0) {backend_config = ""}'),
        ("replay", "bisect"),
        "calls 'triton_kernel_call_ffi', which may carry machine code or run any",
    ),
    "kernel_image": Hostile(
        called(
            "stablehlo.custom_call @hloom.barrier.v1(%arg0) {api_version = 4 : i32, "
            'backend_config = {image = "code"}}'
        ),
        said="calls 'hloom.barrier.v1', which may carry machine code",
    ),
    "other_dialect": Hostile(
        called("mhlo.custom_call @xla_ffi_python_cpu_callback(%arg0)"),
        said="has an operation 'mhlo.custom_call', which JAX does not write",
    ),
    # Numbers.
    "a_billion_devices": Hostile(
        replaced("mhlo.num_partitions = 1 : i32", "mhlo.num_partitions = 1000000000 : i32"),
        said="mhlo.num_partitions is 1000000000 : i32, and a replay wants a number from 1 to",
    ),
    "no_devices": Hostile(
        replaced("mhlo.num_partitions = 1 : i32", "mhlo.num_partitions = 0 : i32"),
        said="mhlo.num_partitions is 0 : i32",
    ),
    "devices_are_text": Hostile(
        replaced("mhlo.num_partitions = 1 : i32", 'mhlo.num_partitions = "1"'),
        said="mhlo.num_partitions is ",
    ),
    "huge_argument": Hostile(
        huge_argument, words=("--arguments", "random"), said="its arguments are 10.9 TiB"
    ),
    "a_billion_processes": Hostile(
        lambda folder, _: edit_manifest(folder.parent.parent, processes=10**9),
        ALL,
        "further processes: the manifest tells of 999,999,979 more",
        status=0,
        module="step-3",
    ),
    "huge_numbers": Hostile(
        manifest(files={"x": {"bytes": 10**4000}}), BOTH, "it cannot be read as JSON", status=0
    ),
    "many_arguments": Hostile(manifest(arguments=[{"name": "x"}] * 200_000), ALL, status=0),
    "huge_curve": Hostile(
        written(
            "xla/live_ranges.json",
            json.dumps(
                {
                    "instructions": 10**29,
                    "curve": [[0, 1], [10**28, 2]],
                    "values": [],
                    "at_peak": [],
                    "peak_bytes": 1,
                    "peak_at": 0,
                }
            ),
        ),
        BOTH,
        "owners of XLA's peak: what the dump has of it cannot be read: expected a whole number",
        status=0,
    ),
    "target": Hostile(
        manifest(target={"name": ["x"], "memory_bytes": "many", "speed": {"kernel_s": 0}}),
        ("replay", "bisect"),
        "the recorded target cannot be read",
        status=0,
    ),
    # Files.
    "state_is_a_link": Hostile(
        linked("00-input.mlir"), ALL, "00-input.mlir: it is a link", status=0
    ),
    "state_is_a_fifo": Hostile(fifo("00-input.mlir"), ALL, "00-input.mlir: it is a FIFO", status=0),
    "state_is_zero": Hostile(
        linked("00-input.mlir", "/dev/zero"), ALL, "00-input.mlir: it is a link", status=0
    ),
    "memory_is_a_fifo": Hostile(
        fifo("xla/memory.json"), ALL, "xla/memory.json: it is a FIFO", status=0
    ),
    "folder_is_a_link": Hostile(linked("xla", ""), ALL, "xla: it is a link", status=0),
    "manifest_is_a_link": Hostile(
        linked("manifest.json"), ALL, "manifest.json: it is a link", status=0
    ),
    "plan_is_a_fifo": Hostile(fifo("plan-01-cse.json"), ALL, "plan-01-cse.json: it is", status=0),
    "attempts_is_zero": Hostile(
        linked("attempts.json", "/dev/zero"), ALL, "attempts.json: it is a link", status=0
    ),
    "large_manifest": Hostile(
        large("manifest.json"), ALL, "manifest.json: it has more than 64 MiB", status=0
    ),
    "large_state": Hostile(large("00-input.mlir"), ("replay",), "it has more than 1024 MiB"),
    "deep_manifest": Hostile(
        written("manifest.json", deep(200_000)), ALL, "stand more than 100 deep", status=0
    ),
    "deep_live_ranges": Hostile(
        written("xla/live_ranges.json", '{"a": ' + deep(300) + "}"),
        ALL,
        "stand more than 100 deep",
        status=0,
    ),
    "names_outside": Hostile(
        manifest(
            files={
                "../../../../outside/secret": {"bytes": 1},
                "/etc/passwd": {"bytes": 1},
                "a\0b": {"bytes": 1},
                "xla/../../x": {"bytes": 1},
            }
        ),
        ALL,
        "../../../../outside/secret: the name leads out of the dump",
        status=0,
    ),
    "not_utf8": Hostile(written("00-input.mlir", b"module \xff {}"), said="no text in UTF-8"),
    "nul_in_module": Hostile(written("00-input.mlir", "module {\0}"), said="it has NUL bytes"),
    # Words.
    "controls": Hostile(
        manifest(
            module=CONTROLS,
            spec="cse",
            platform=CONTROLS,
            error=CONTROLS,
            arguments=[{"name": CONTROLS, "type": CONTROLS}],
            results=[{"name": CONTROLS}],
            missing=[{"what": CONTROLS, "why": CONTROLS, "remedy": CONTROLS}],
            compile={"fell_back": CONTROLS, "complaint": CONTROLS, "changed": True},
            versions={"jax": f"0.1; {CONTROLS}"},
        ),
        ALL,
        "\\x1b]52;c;",
        status=0,
    ),
    "controls_in_the_module": Hostile(
        called('stablehlo.custom_call @"\\1B]52;c;x\\07"(%arg0)'), said="calls '\\x1b]52;c;x\\x07'"
    ),
    "half_a_character": Hostile(
        written("captured.json", '{"coverage": null, "options": {}, "notes": ["\\ud800"]}'),
        BOTH,
        status=0,
    ),
    "spec_of_controls": Hostile(manifest(spec=CONTROLS), ("replay", "bisect"), "\\x1b]52"),
    # What is written.
    "report_is_a_link": Hostile(
        linked("report.html", "victim"), ("report",), "report.html: it is a link"
    ),
    "report_is_a_fifo": Hostile(fifo("report.html"), ("report",), "report.html: it is a FIFO"),
    # Arrays.
    "shards_are_a_link": Hostile(shards_link, said="it is a link"),
    "huge_array": Hostile(huge_array, said="tells of arrays of"),
    "array_outside": Hostile(array_outside, said="is no part of"),
    "arrays_are_a_fifo": Hostile(fifo("arguments/arrays.json"), said="it is a FIFO"),
    "arrays_are_a_link": Hostile(linked("arguments", ""), status=0),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dump in which nothing is wrong, with programs that nobody should start."""

    def small(x: Any) -> Any:
        return jnp.sin(x) + jnp.sin(x)

    to = tmp_path_factory.mktemp("good")
    write_step(capture(to, [execution(small, (jnp.arange(3.0),), spec="cse")]))
    return to


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
    good: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, list[Outcome]]]:
    """Of each dump its folder and what the commands did, all in one process."""
    to = tmp_path_factory.mktemp("hostile")
    jobs = []
    for name, hostile in HOSTILE.items():
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
                for command, row in zip(hostile.commands, rows, strict=False)
            ],
        )
        for name, hostile in HOSTILE.items()
    }


@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_refused_in_a_line_or_harmless(
    name: str, outcomes: dict[str, tuple[Path, list[Outcome]]]
) -> None:
    hostile = HOSTILE[name]
    folder, ran = outcomes[name]
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
    page = folder / MODULE / "report.html"
    if page.is_file() and not page.is_symlink():
        html = page.read_text(encoding="utf-8")
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
