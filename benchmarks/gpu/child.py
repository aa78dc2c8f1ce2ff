"""One item, in a process of its own.

    python -m benchmarks.gpu.child JOB.json

The job names the function, its arguments, the file for how it ended, and the limit, after which
the process ends itself: what started it may be gone by then.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu.items import FAILED, OK, OUT_OF_MEMORY, SKIPPED, Entry, Skip

Note = Callable[[Any], None]
"""Takes what an item has found so far: kept where the item then crashes or runs too long."""

_OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "Out of memory", "out of memory", "CUDA_ERROR_OUT_OF_")
_SPARE_S = 5
_MOST_CHARACTERS = 2000


def main(job_file: str) -> None:
    """Runs the job and writes how it ended."""
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    signal.alarm(int(job["limit_s"]) + _SPARE_S)
    result = Path(job["result"])

    noted: Entry = {}

    def note(found: Any) -> None:
        noted["partial"] = found
        _write(result, noted)

    entry = run(job["function"], job["arguments"], note)
    _write(result, entry if entry["status"] == OK else entry | noted)


def run(function: str, arguments: Mapping[str, Any], note: Note) -> Entry:
    """Calls a function, "module:function"; says how it ended."""
    module, _, name = function.partition(":")
    try:
        # At its call, and not at the top: what an item needs may be missing.
        called = getattr(importlib.import_module(module), name)
        return {"status": OK, "result": called(note, **arguments)}
    except Skip as reason:
        return {"status": SKIPPED, "why": str(reason)}
    except ModuleNotFoundError as error:
        return {"status": SKIPPED, "why": f"the package {error.name} is not installed"}
    except BaseException as error:
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}"[:_MOST_CHARACTERS]
        no_memory = isinstance(error, MemoryError) or any(each in text for each in _OUT_OF_MEMORY)
        return {"status": OUT_OF_MEMORY if no_memory else FAILED, "why": text}


def _write(file: Path, entry: Entry) -> None:
    new = file.with_suffix(".new")
    new.write_text(json.dumps(entry), encoding="utf-8")
    os.replace(new, file)


if __name__ == "__main__":
    main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    # What is written is all there is to say: threads of a stuck device must not keep the process.
    os._exit(0)
