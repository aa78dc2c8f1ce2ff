"""The results as tables: beside the JSON file, and for docs/results.md."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.items import OK, Known, result_of
from benchmarks.gpu.results import DRY_RUN, file_name

_MEBI = 2**20
_STEP, _TIME = "step/", "time/"


def markdown(report: dict[str, Any]) -> Iterator[str]:
    """All of a file of results, of every version of JAX."""
    yield "# What only a GPU can tell"
    yield ""
    yield "<!-- Written by `python -m benchmarks.gpu`. -->"
    for version, entry in report.items():
        facts, items = entry["machine"], entry["items"]
        yield ""
        yield f"## {facts['device']}, jax {version}, Python {facts['python']}"
        yield ""
        yield f"{_driver(facts)}; hloom {facts['hloom']}, {_commits(items)}. {_counted(items)}."
        for program in _programs(items):
            yield ""
            yield f"### {program}"
            yield ""
            yield from _steps(items, program)
        yield ""
        yield "### everything else"
        yield ""
        rest = [[f"`{n}`", e["status"], _told(e)] for n, e in items.items() if not _is_step(n)]
        yield from _table(["item", "ended", "which gave"], rest, names=3)


def results_section(results: Path) -> Iterator[str]:
    """For docs/results.md: of each device whose results are committed, the newest JAX's."""
    files = [f for f in sorted(results.glob("gpu_*.json")) if f.name != file_name(DRY_RUN)]
    if not files:
        yield "Not measured yet: no figure here is from a GPU. [gpu.md](gpu.md) has the one command"
        yield "that measures, and which defaults wait for it."
        return
    for number, file in enumerate(files):
        *_, (version, entry) = json.loads(file.read_text(encoding="utf-8")).items()
        facts, items = entry["machine"], entry["items"]
        if number:
            yield ""
        yield f"{facts['device']}, {_driver(facts)}, jax {version}, {_commits(items)}:"
        yield f"{_counted(items)} (ended items of `python -m benchmarks.gpu`)."
        yield "A step's time is a median, and its ratio to the step with hloom off in brackets."
        yield ""
        chosen = {
            "off": "off",
            "capture": "`capture`",
            "remat": "`remat`",
            "remat, the floor": "`remat`, the floor",
            "nothing_saveable": "`nothing_saveable`",
        }
        columns = ["program, ms; MiB of the allocator's peak", *chosen.values()]
        rows = [
            [program, *(_cell(items, program, label) for label in chosen)]
            for program in _programs(items)
        ]
        yield from _table(columns, rows)


def _driver(facts: dict[str, Any]) -> str:
    smi = facts.get("nvidia_smi") or []
    fields = [field.strip() for field in smi[0].split(",")] if smi else []
    return f"driver {fields[1]}" if len(fields) > 1 else "driver unknown"


def _commits(items: Known) -> str:
    found = Counter(str(entry.get("commit"))[:10] for entry in items.values())
    return f"commit{'s' if len(found) > 1 else ''} {', '.join(found) or 'unknown'}"


def _counted(items: Known) -> str:
    found = Counter(entry["status"] for entry in items.values())
    return ", ".join(f"{count} {status}" for status, count in found.items()) or "nothing ran"


def _is_step(name: str) -> bool:
    return name.startswith((_STEP, _TIME))


def _programs(items: Known) -> list[str]:
    return list(dict.fromkeys(name.split("/")[1] for name in items if name.startswith(_STEP)))


def _steps(items: Known, program: str) -> Iterator[str]:
    rows = []
    off = result_of(items, f"{_STEP}{program}/off") or {}
    for name, entry in items.items():
        if not name.startswith(f"{_STEP}{program}/"):
            continue
        label = name.split("/", 2)[2]
        found = entry.get("result") or {}
        rows.append(
            [
                f"`{label}`",
                entry["status"],
                _mebi(found.get("temp_bytes")),
                _mebi(found.get("step_bytes")),
                _peak(found),
                *_times(items, program, label),
                _loss(found, off),
            ]
        )
    columns = ["configuration", "ended", "temp, MiB", "step, MiB", "allocator's peak, MiB"]
    columns += ["step, ms (quartiles)", "of off (quartiles)", "results differ", "loss differs"]
    yield from _table(columns, rows, names=2)


def _times(items: Known, program: str, label: str) -> Iterator[str]:
    # What was timed before something went wrong counts, too.
    entry = items.get(f"{_TIME}{program}", {})
    found = entry.get("result") or entry.get("partial") or {}
    row = found.get("configurations", {}).get(label, {})
    yield _spread(row.get("step_s"), ".3g", 1e3)
    yield _spread(row.get("ratio") if found.get("ratio_to") == "off" else None, ".3f")
    yield f"{row['difference']:.1e}" if "difference" in row else ""


def _spread(quartiles: Sequence[float] | None, form: str, times: float = 1) -> str:
    if quartiles is None:
        return ""
    low, middle, high = (format(each * times, form) for each in quartiles)
    return f"{middle} ({low} to {high})"


def _cell(items: Known, program: str, label: str) -> str:
    entry = items.get(f"{_STEP}{program}/{label}")
    if entry is None:
        return ""
    if entry["status"] != OK:
        return str(entry["status"])
    times = result_of(items, f"{_TIME}{program}") or {}
    of_it = times.get("configurations", {}).get(label)
    if of_it is None:
        return f"not timed; {_peak(entry['result'])}"
    ratio = f" ({of_it['ratio'][1]:.3f})" if times["ratio_to"] == "off" else ""
    return f"{of_it['step_s'][1] * 1e3:.3g}{ratio}; {_peak(entry['result'])}"


def _peak(found: dict[str, Any]) -> str:
    peak = _mebi(found.get("allocator_peak_bytes"))
    return f"at most {peak}" if peak and found.get("peak_is_of_the_compile") else peak


def _loss(found: dict[str, Any], off: dict[str, Any]) -> str:
    loss, wanted = found.get("loss"), off.get("loss")
    if loss is None or wanted is None:
        return ""
    return "equal" if loss == wanted else f"{abs(loss - wanted) / abs(wanted):.1e}"


def _mebi(size_bytes: int | None) -> str:
    return "" if size_bytes is None else f"{size_bytes / _MEBI:.0f}"


def _told(entry: dict[str, Any]) -> str:
    """Why it ended so, or what it gave, in a cell of a table."""
    text = str(entry.get("why") or json.dumps(entry.get("result")))
    return text.replace("\n", " ").replace("|", "\\|")[:300]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], names: int = 1) -> Iterator[str]:
    # As benchmarks.common.tables has it, which needs JAX.
    yield "| " + " | ".join(columns) + " |"
    yield "|" + " --- |" * names + " ---: |" * (len(columns) - names)
    yield from ("| " + " | ".join(row) + " |" for row in rows)
