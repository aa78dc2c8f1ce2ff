"""The results as tables: beside the JSON file, and for docs/results.md."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.items import Known, result_of
from benchmarks.gpu.parts.part2_steps import MATCHED, matched
from benchmarks.gpu.parts.part5_attention import BY_HAND, KERNEL, TIMED, least_keys
from benchmarks.gpu.results import DRY_RUN, file_name

MEBI_BYTES = 2**20
STEP, _TIME = "step/", "time/"

_LEVEL = 1.01

_SHOWN = ("off", "remat", "fit")
"""The configurations whose time and memory docs/results.md has."""


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
        for program in programs_of(items):
            yield ""
            yield f"### {program}"
            yield ""
            yield from _steps(items, program)
        yield ""
        yield "### everything else"
        yield ""
        rest = [[f"`{n}`", e["status"], _told(e)] for n, e in items.items() if not _is_step(n)]
        yield from table_lines(["item", "ended", "which gave"], rest, names=3)


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
        yield f"{_counted(items)}{_named(items)}. A step's time is a median over turns, with"
        yield "its ratio to hloom off in brackets. MiB are XLA's figure of the step. What was not"
        yield "measured is empty."
        yield ""
        every = [p for p in programs_of(items) if result_of(items, f"{_TIME}{p}") is not None]
        timed = [p for p in every if p not in TIMED]
        columns = ["program", *(name for of in _SHOWN for name in (f"`{of}`, ms", "MiB"))]
        yield from table_lines(columns, [[program, *_shown(items, program)] for program in timed])
        yield ""
        yield "The time of `fit` within the memory of a policy of `jax.checkpoint`, divided by the"
        yield "policy's; *over* where `fit` takes more memory than the policy:"
        yield ""
        matching = [p for p in timed if any(_beside(items, p, policy) for policy in MATCHED)]
        yield from table_lines(
            ["program", *(f"`{policy}`" for policy in MATCHED)],
            [[p, *(_beside(items, p, policy) for policy in MATCHED)] for p in matching],
        )
        yield ""
        yield from _points(items, timed)
        yield from _attention(items, [p for p in every if p in TIMED])


def _shown(items: Known, program: str) -> Iterator[str]:
    """The time and the memory of a step, of each configuration that is shown."""
    for label in _SHOWN:
        yield _cell(items, program, label)
        yield _mebi((result_of(items, f"{STEP}{program}/{label}") or {}).get("step_bytes"))


def _attention(items: Known, programs: Sequence[str]) -> Iterator[str]:
    """The times of steps with attention by the kernels, and by JAX's own call of them."""
    if not programs:
        return
    yield ""
    yield "Four layers of a decoder of 8,192 tokens, as they are, with `attention`, and by hand:"
    yield ""
    labels = ("off", KERNEL, BY_HAND["label"])
    yield from table_lines(
        ["program", *(f"{label}, ms" for label in labels)],
        [[program, *(_cell(items, program, label) for label in labels)] for program in programs],
    )
    keys = least_keys(items)
    yield ""
    yield (
        f"`attention` takes less time from {keys} keys on."
        if keys is not None
        else "`attention` takes less time at no number of keys."
    )


def _points(items: Known, programs: Sequence[str]) -> Iterator[str]:
    """How many policies `fit` beats in time at no more memory."""
    ratios = [
        (policy_s, fit_s)
        for program in programs
        for policy in MATCHED
        if (policy_s := step_seconds(items, program, policy)) is not None
        and (fit_s := _kept_seconds(items, program, policy)) is not None
    ]
    faster = sum(fit_s < policy_s for policy_s, fit_s in ratios)
    level = sum(policy_s <= fit_s <= policy_s * _LEVEL for policy_s, fit_s in ratios)
    yield f"At no more memory than the policy, `fit` takes less time at {faster} of {len(ratios)}"
    yield f"points, and at {level} more at most {_LEVEL - 1:.0%} longer."


def step_seconds(items: Known, program: str, label: str) -> float | None:
    """A step's median; None where it was not timed."""
    times = result_of(items, f"{_TIME}{program}") or {}
    of_it = times.get("configurations", {}).get(label, {})
    return of_it["step_s"][1] if "step_s" in of_it else None


def _kept_seconds(items: Known, program: str, policy: str) -> float | None:
    """A step's median under `fit` with a policy's memory; infinite where it takes more."""
    label = matched(policy)
    found = result_of(items, f"{STEP}{program}/{label}")
    seconds = step_seconds(items, program, label)
    if found is None or seconds is None:
        return None
    return seconds if found["step_bytes"] <= found["budget_bytes"] else math.inf


def _beside(items: Known, program: str, policy: str) -> str:
    """The time of `fit` with as much memory as a policy, divided by the policy's."""
    theirs, ours = step_seconds(items, program, policy), _kept_seconds(items, program, policy)
    if theirs is None or ours is None:
        return ""
    return "*over*" if ours == math.inf else f"{ours / theirs:.3f}"


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


def _named(items: Known) -> str:
    """The items that failed, by name."""
    names = [f"`{name}`" for name, entry in items.items() if entry["status"] == "failed"]
    return f"; failed: {', '.join(names)}" if names else ""


def _is_step(name: str) -> bool:
    return name.startswith((STEP, _TIME))


def programs_of(items: Known) -> list[str]:
    """The programs whose steps were tried."""
    return list(dict.fromkeys(name.split("/")[1] for name in items if name.startswith(STEP)))


def _steps(items: Known, program: str) -> Iterator[str]:
    rows = []
    off = result_of(items, f"{STEP}{program}/off") or {}
    for name, entry in items.items():
        if not name.startswith(f"{STEP}{program}/"):
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
                *_times(items, program, label, found.get("foreseen_s")),
                _loss(found, off),
            ]
        )
    columns = ["configuration", "ended", "temp, MiB", "step, MiB", "allocator's peak, MiB"]
    columns += ["step, ms (quartiles)", "foreseen, ms", "error", "of off (quartiles)"]
    columns += ["results differ", "loss differs"]
    yield from table_lines(columns, rows, names=2)


def _times(items: Known, program: str, label: str, foreseen_s: float | None) -> Iterator[str]:
    # What was timed before something went wrong counts, too.
    entry = items.get(f"{_TIME}{program}", {})
    found = entry.get("result") or entry.get("partial") or {}
    row = found.get("configurations", {}).get(label, {})
    yield _spread(row.get("step_s"), ".3g", 1e3)
    yield "" if foreseen_s is None else f"{foreseen_s * 1e3:.3g}"
    yield f"{foreseen_s / row['step_s'][1] - 1:+.1%}" if foreseen_s and "step_s" in row else ""
    yield _spread(row.get("ratio") if found.get("ratio_to") == "off" else None, ".3f")
    yield f"{row['difference']:.1e}" if "difference" in row else ""


def _spread(quartiles: Sequence[float] | None, form: str, times: float = 1) -> str:
    if quartiles is None:
        return ""
    low, middle, high = (format(each * times, form) for each in quartiles)
    return f"{middle} ({low} to {high})"


def _cell(items: Known, program: str, label: str) -> str:
    seconds, off = step_seconds(items, program, label), step_seconds(items, program, "off")
    if seconds is None or off is None:
        return ""
    return f"{seconds * 1e3:.3g}" + (f" ({seconds / off:.3f})" if label != "off" else "")


def _peak(found: dict[str, Any]) -> str:
    peak = _mebi(found.get("allocator_peak_bytes"))
    return f"at most {peak}" if peak and found.get("peak_is_of_the_compile") else peak


def _loss(found: dict[str, Any], off: dict[str, Any]) -> str:
    loss, wanted = found.get("loss"), off.get("loss")
    if loss is None or wanted is None:
        return ""
    return "equal" if loss == wanted else f"{abs(loss - wanted) / abs(wanted):.1e}"


def _mebi(size_bytes: int | None) -> str:
    return "" if size_bytes is None else f"{size_bytes / MEBI_BYTES:.0f}"


def _told(entry: dict[str, Any]) -> str:
    """Why it ended so, or what it gave, in a cell of a table."""
    text = str(entry.get("why") or json.dumps(entry.get("result")))
    return text.replace("\n", " ").replace("|", "\\|")[:300]


def table_lines(
    columns: Sequence[str], rows: Sequence[Sequence[str]], names: int = 1
) -> Iterator[str]:
    """A table of Markdown, as benchmarks.common.tables has it, which needs JAX."""
    yield "| " + " | ".join(columns) + " |"
    yield "|" + " --- |" * names + " ---: |" * (len(columns) - names)
    yield from ("| " + " | ".join(row) + " |" for row in rows)
