"""XLA's side of a module: the optimised HLO, memory figures and live ranges, from its executable.

An executable, one from the persistent cache too, has the first two. Live ranges are read from the
text that XLA writes at a compile, where that was kept.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hloom._jax.executables import generated_code_bytes, memory_figures, optimized_text
from hloom.dumps.collect.store import ModuleFacts
from hloom.dumps.read.module import Missing, json_text
from hloom.xla.live_ranges import live_ranges

LIVE_RANGES, THUNKS = "live ranges", "thunk sequence"
"""What in `missing` names files that only a compile gives."""


def write_artifacts(executable: Any, folder: Path) -> tuple[Missing, ...]:
    """Writes what XLA tells of an executable to `folder`/xla; gives what is missing.

    Raises OSError where a file cannot be written.
    """
    target = folder / "xla"
    target.mkdir(exist_ok=True)
    missing = []
    for what, part in (
        ("optimised HLO", _write_hlo),
        ("memory figures", _write_memory),
        (LIVE_RANGES, _write_live_ranges),
    ):
        try:
            part(executable, target)
        except OSError:
            raise
        except Exception as error:
            missing.append(Missing(what, f"XLA does not tell: {type(error).__name__}: {error}"))
    return tuple(missing)


def missing_texts(
    folder: Path, facts: ModuleFacts | None, told: Collection[Missing]
) -> list[Missing]:
    """What of XLA's text a module folder lacks and `told` does not name yet.

    `facts` are None where nothing was kept of the module at its compile.
    """
    remedies = {LIVE_RANGES: "", THUNKS: ""}
    if facts is None:
        why = "XLA writes it at a compile only, and only where it is asked to"
        remedies[THUNKS] = "`hloom capture 00-input.mlir` compiles the module again and shows it"
    elif facts.manifest.get("compile", {}).get("cache_hit"):
        why = "the executable came from JAX's persistent cache, and XLA did not compile"
        remedies = dict.fromkeys(remedies, "compile it anew: JAX_ENABLE_COMPILATION_CACHE=0")
    else:
        why = "XLA wrote none"
    if facts is not None and facts.platform == "cpu":
        del remedies[THUNKS]  # XLA:CPU has no thunk sequence to write
    files = {LIVE_RANGES: "live-range.txt", THUNKS: "thunk_sequence.txt"}
    return [
        Missing(what, why, remedy)
        for what, remedy in remedies.items()
        if not (folder / "xla" / files[what]).exists()
        and not any(what in each.what for each in told)
    ]


def write_file(file: Path, content: str | bytes) -> None:
    """Writes a file, text as UTF-8. Raises OSError, and leaves no part of it then."""
    if isinstance(content, str):
        # Bytes that XLA took from a file name, and that are no UTF-8.
        content = content.encode("utf-8", "surrogateescape")
    try:
        file.write_bytes(content)
    except OSError:
        file.unlink(missing_ok=True)
        raise


def _write_hlo(executable: Any, target: Path) -> None:
    write_file(target / "optimized_hlo.txt", optimized_text(executable))


def _write_memory(executable: Any, target: Path) -> None:
    code_bytes = generated_code_bytes(executable)
    if code_bytes is None:
        raise LookupError("this backend has no memory figures")
    memory = {name: size or 0 for name, size in asdict(memory_figures(executable)).items()}
    step_bytes = memory["argument_bytes"] + memory["output_bytes"] + memory["temp_bytes"]
    memory["step_bytes"] = step_bytes - memory["alias_bytes"]
    memory["generated_code_bytes"] = code_bytes
    write_file(target / "memory.json", json_text(memory))


def _write_live_ranges(executable: Any, target: Path) -> None:
    texts = [target / name for name in ("buffer-assignment.txt", "live-range.txt")]
    if all(file.exists() for file in texts):
        assignment, ranges = (file.read_text("utf-8", "replace") for file in texts)
        found = live_ranges(assignment, ranges, optimized_text(executable))
        write_file(target / "live_ranges.json", json_text(found))
