"""A catalogue of dumps that somebody made to do harm, each an edit of a good one."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.dumps.report_dumps import edit_manifest

MODULE = "step-3/process-0/jit_small-0"
SECRET = "the content of a file that is none of the dump's"
CONTROLS = "\x1b]52;c;cHduZWQ=\x07\x1b[2J\u202egnp.\u2066\x9b31m[/red]"
"""Steers a terminal, turns text around, and is no markup."""

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
    return lambda folder, _: os.truncate(folder / name, 2**41)


def replaced(old: str, new: str, times: int = 1) -> Edit:
    """The module with another text in it; -1 is everywhere."""

    def edit(folder: Path, _: Path) -> None:
        file = folder / "00-input.mlir"
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new, times))

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


def first_array(change: Callable[[dict[str, Any]], None]) -> Edit:
    """What the dump tells of its first array, changed."""

    def edit(folder: Path, _: Path) -> None:
        file = folder / "arguments" / "arrays.json"
        told = json.loads(file.read_text())
        change(told["arrays"][0])
        file.write_text(json.dumps(told))

    return edit


BOTH = ("report --text", "report")
ALL = (*BOTH, "replay", "bisect")


def shown(edit: Edit, said: str = "", commands: tuple[str, ...] = ALL, **more: Any) -> Hostile:
    """A dump of which the commands show the rest, and say what is left out, if anything is."""
    return Hostile(edit, commands, said, status=0, **more)


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
    "dump_to": shown(
        options(xla_dump_to="{outside}/written", xla_dump_hlo_as_text="True", xla_odd="1"),
        "left out of the dump's options of XLA: xla_dump_hlo_as_text, xla_dump_to, xla_odd",
        commands=("replay",),
    ),
    "options_are_a_list": shown(
        manifest(platform="cpu", compile_options=[1]), commands=("replay",)
    ),
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
        replaced("tensor<3xf32>", "tensor<3000000x1000000xf32>", -1),
        words=("--arguments", "random"),
        said="its arguments are 10.9 TiB",
    ),
    "a_billion_processes": shown(
        lambda folder, _: edit_manifest(folder.parent.parent, processes=10**9),
        "further processes: the manifest tells of 999,999,979 more",
        module="step-3",
    ),
    "huge_numbers": shown(
        manifest(files={"x": {"bytes": 10**4000}}), "it cannot be read as JSON", commands=BOTH
    ),
    "many_arguments": shown(manifest(arguments=[{"name": "x"}] * 200_000)),
    "huge_curve": shown(
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
        "owners of XLA's peak: what the dump has of it cannot be read: instructions is 1000",
        commands=BOTH,
    ),
    "target": shown(
        manifest(target={"name": ["x"], "memory_bytes": "many", "speed": {"kernel_s": 0}}),
        "the recorded target cannot be read",
        commands=("replay", "bisect"),
    ),
    # Files.
    "state_is_a_link": shown(linked("00-input.mlir"), "00-input.mlir: it is a link"),
    "state_is_a_fifo": shown(fifo("00-input.mlir"), "00-input.mlir: it is a FIFO"),
    "state_is_zero": shown(linked("00-input.mlir", "/dev/zero"), "00-input.mlir: it is a link"),
    "memory_is_a_fifo": shown(fifo("xla/memory.json"), "xla/memory.json: it is a FIFO"),
    "folder_is_a_link": shown(linked("xla", ""), "xla: it is a link"),
    "manifest_is_a_link": shown(linked("manifest.json"), "manifest.json: it is a link"),
    "plan_is_a_fifo": shown(fifo("plan-01-cse.json"), "plan-01-cse.json: it is"),
    "attempts_is_zero": shown(linked("attempts.json", "/dev/zero"), "attempts.json: it is a link"),
    "large_manifest": shown(large("manifest.json"), "manifest.json: it has more than 64 MiB"),
    "large_state": Hostile(large("00-input.mlir"), ("replay",), "it has more than 1024 MiB"),
    "deep_manifest": shown(written("manifest.json", deep(200_000)), "stand more than 100 deep"),
    "deep_live_ranges": shown(
        written("xla/live_ranges.json", '{"a": ' + deep(300) + "}"), "stand more than 100 deep"
    ),
    "names_outside": shown(
        manifest(
            files={
                "../../../../outside/secret": {"bytes": 1},
                "/etc/passwd": {"bytes": 1},
                "a\0b": {"bytes": 1},
                "xla/../../x": {"bytes": 1},
            }
        ),
        "../../../../outside/secret: the name leads out of the dump",
    ),
    "not_utf8": Hostile(written("00-input.mlir", b"module \xff {}"), said="no text in UTF-8"),
    "nul_in_module": Hostile(written("00-input.mlir", "module {\0}"), said="it has NUL bytes"),
    # Words.
    "controls": shown(
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
        "\\x1b]52;c;",
    ),
    "controls_in_the_module": Hostile(
        called('stablehlo.custom_call @"\\1B]52;c;x\\07"(%arg0)'), said="calls '\\x1b]52;c;x\\x07'"
    ),
    "half_a_character": shown(
        written("captured.json", '{"coverage": null, "options": {}, "notes": ["\\ud800"]}'),
        commands=BOTH,
    ),
    "sent_by_nobody": shown(
        written("sent.json", '{"predicted_bytes": {"x": -1}, "overview": [], "xla_bytes": 3}'),
        commands=("report",),
    ),
    "spec_of_controls": Hostile(manifest(spec=CONTROLS), ("replay", "bisect"), "\\x1b]52"),
    # What is written.
    "report_is_a_link": Hostile(
        linked("report.html", "victim"), ("report",), "report.html: it is a link"
    ),
    "report_is_a_fifo": Hostile(fifo("report.html"), ("report",), "report.html: it is a FIFO"),
    # Arrays.
    "shards_are_a_link": Hostile(shards_link, said="it is a link"),
    "huge_array": Hostile(
        first_array(lambda array: array.update(shape=[2**40])), said="tells of arrays of"
    ),
    "array_outside": Hostile(
        first_array(lambda array: array["shards"][0].update(start=[0], stop=[2**40])),
        said="is no part of",
    ),
    "arrays_are_a_fifo": Hostile(fifo("arguments/arrays.json"), said="it is a FIFO"),
    "arrays_are_a_link": shown(linked("arguments", ""), commands=("replay",)),
}
