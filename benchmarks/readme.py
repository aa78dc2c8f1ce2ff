"""Writes what is generated into README.md and docs/: figures, and the table of packages.

    python -m benchmarks.readme

It is between marker comments. Figures come from benchmarks/results alone, packages from their
docstrings; a test holds the pages to what this writes.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.budgets.tables import summary
from benchmarks.capture import DEVICES, cell
from benchmarks.common.h100 import MEBI_BYTES
from benchmarks.common.tables import RESULTS, table
from benchmarks.frontier.points import BudgetPoint, Point, kept
from benchmarks.frontier.report import FLOOR_POLICY, Frontier
from benchmarks.frontier.store import PASSES, drawing, frontiers
from benchmarks.frontier.yardsticks import H100
from benchmarks.gpu.front import front_page
from benchmarks.gpu.tables import results_section
from benchmarks.split import summary as split_summary
from benchmarks.stages import summary as stages_summary
from hloom import targets
from hloom.passes.framework.text import size

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Rewrites the pages in place."""
    for name in PAGES:
        page = ROOT / name
        page.write_text(filled_in(name, page.read_text(encoding="utf-8")), encoding="utf-8")


def filled_in(page: str, text: str) -> str:
    """A page's text with every section between markers written anew.

    Raises ValueError where a marker of the page is missing.
    """
    for name, write in PAGES[page].items():
        pattern = rf"(<!-- begin {name} [^\n]*-->\n).*?(<!-- end {name} -->\n)"
        found = re.findall(pattern, text, flags=re.DOTALL)
        if len(found) != 1:
            raise ValueError(f"{page} has {len(found)} sections between markers '{name}', wanted 1")
        [(begin, end)] = found
        before, after = text.split(begin)[0], text.split(end)[1]
        text = before + begin + "\n".join([*write(), ""]) + end + after
    return text


def _figures() -> Iterator[str]:
    """Memory, budgets and graphs, of the oldest JAX that was measured."""
    version, measured = _oldest(f"{H100.results}.json")
    programs = frontiers(H100, measured["programs"])
    gpt = programs["gpt_unrolled"]
    cheap = next(point for point in gpt.passes["remat"] if point.budget_bytes is None)
    shown = _shown(programs)
    budgets = [kept(frontier.passes[shown], frontier.none) for frontier in programs.values()]
    within, tried = (sum(getattr(b, of) for b in budgets) for of in ("within", "above_floor"))
    _, captured = _oldest("capture_h100.json")
    scanned = next(
        row
        for row in captured["programs"]
        if row["title"] == "GPT, 4 layers scanned" and row["devices"] == 1
    )
    yield f"| compiled for an H100, jax {version} | without hloom | with hloom |"
    yield "| --- | ---: | ---: |"
    yield (
        f"| memory of a step, {gpt.title}: `remat`, which repeats no matrix product "
        f"| {gpt.mebi(gpt.none)} MiB | {gpt.mebi(cheap)} MiB |"
    )
    yield (
        f"| budgets that the compiled step keeps, {len(programs)} programs: `{shown}{{budget=…}}` "
        f"| | {within} of {tried} |"
    )
    yield (
        f"| thunks (kernels, copies) in CUDA graphs, {scanned['title']}: "
        f"`capture{{loops=on}}` | {cell(scanned['alone'])} | {cell(scanned['captured'])} |"
    )
    yield from _figures_of_loops()


def _shown(programs: dict[str, Frontier]) -> str:
    """The first of the passes that every program was measured with."""
    return next(name for name in PASSES if all(name in one.passes for one in programs.values()))


def _figures_of_loops() -> Iterator[str]:
    """Temporary memory of a step in microbatches, and of programs with a large vocabulary."""
    _, accumulated = _oldest("accumulate_h100.json")
    ways, spec = accumulated["one_device"]["scanned"], "accumulate{microbatches=8}"
    before, after = (ways[way]["temp_bytes"] for way in ("the whole batch", f"`{spec}`"))
    yield (
        f"| temporaries of a step, GPT, 12 layers scanned, with Adam: `{spec}` "
        f"| {_mebi(before)} MiB | {_mebi(after)} MiB |"
    )
    _, heads = _oldest("loss_heads_h100.json")
    row = heads["subjects"]["head_131072"]
    before, after = (row[each]["temp_bytes"] for each in ("off", "chunk"))
    yield (
        "| temporaries of a loss head, 8192 tokens, 131072 words: `chunk` "
        f"| {_mebi(before)} MiB | {_mebi(after)} MiB |"
    )
    _, products = _oldest("ragged.json")
    before, after = (products["h100"]["64"][each]["temp_bytes"] for each in ("off", "ragged"))
    yield (
        "| temporaries of a ragged product's gradients, 64 experts: `ragged` "
        f"| {_mebi(before)} MiB | {_mebi(after)} MiB |"
    )
    _, fills = _oldest("fills_h100.json")
    first = fills["rows"][0]["program"]
    before, after = (
        next(row for row in fills["rows"] if (row["program"], row["spec"]) == (first, spec))
        for spec in ("remat", "remat,uninitialized-stacks")
    )
    yield (
        f"| zeros and masks that a step with `remat` writes first, {first}: "
        f"`uninitialized-stacks` "
        f"| {_mebi(before['at_entry_bytes'])} MiB | {_mebi(after['at_entry_bytes'])} MiB |"
    )


def _packages() -> Iterator[str]:
    """The packages of the product, to two levels, with the first line of their docstrings."""
    yield "| folder | content |"
    yield "| --- | --- |"
    tops = (file.parent for file in ROOT.glob("*/__init__.py"))
    for top in sorted(top for top in tops if top.name not in ("benchmarks", "tests")):
        # The links in hloom/ to the other three are not followed.
        files = [top / "__init__.py", *top.glob("*/__init__.py")]
        for file in sorted(files, key=lambda each: each.parent):
            if file.resolve() == file:
                tree = ast.parse(file.read_text(encoding="utf-8"))
                first, *_ = (ast.get_docstring(tree) or "").splitlines() or [""]
                yield f"| `{file.parent.relative_to(ROOT)}/` | {first} |"


def _targets() -> Iterator[str]:
    """Every device that hloom plans for: its memory, and what a step may take of it."""
    yield "| name | device | memory | for a step |"
    yield "| --- | --- | ---: | ---: |"
    for name in targets.names():
        target = targets.load(name)
        if target.memory_bytes is not None and target.usable_bytes is not None:
            kind = targets.device_kinds(name)[0].removeprefix("NVIDIA ")
            sizes = f"{size(target.memory_bytes)} | {size(target.usable_bytes)}"
            yield f"| `{name}` | {kind} | {sizes} |"
        else:
            yield f"| `{name}` | the host as it is | | |"


def _demo() -> Iterator[str]:
    report = _read("demo_cpu.json")
    off, on = report["off"], report["on"]
    sizes = report["sizes"]
    yield (
        f"`make demo` ({sizes['layers']} layers, width {sizes['width']}, batch {sizes['batch']}, "
        f"sequence {sizes['sequence']}, float32; jax {report['jax']}, Python {report['python']}, "
        f"CPU with 2 cores): over {report['steps']} steps the losses differ by at most "
        f"{report['largest_relative_difference']:.1e}, relative."
    )
    yield ""
    yield "| | hloom off | hloom on |"
    yield "| --- | ---: | ---: |"
    yield from (
        f"| XLA's {name} memory, MiB | {_mebi(off['memory'][key])} | {_mebi(on['memory'][key])} |"
        for name, key in (("temporary", "temp_bytes"), ("argument", "argument_bytes"))
    )
    yield f"| passes, s | {off['pass_s']:.2f} | {on['pass_s']:.2f} |"
    yield f"| XLA's compile, s | {off['compile_s']:.2f} | {on['compile_s']:.2f} |"
    steps_ms = [one["median_step_s"] * 1000 for one in (off, on)]
    yield f"| a training step, ms, median | {steps_ms[0]:.0f} | {steps_ms[1]:.0f} |"


def _h100() -> list[str]:
    columns = ["jax", "layers", "model", "without", "`remat`", "`dots_saveable`", "passes / XLA"]
    report = _read("remat_cheap_h100.json")
    rows: list[list[str]] = []
    for version, entry in report.items():
        for row in entry["programs"]:
            memory = [row["off"], row["on"], row["checkpoint"]["dots_saveable"]]
            figures = [_mebi(one["temp_bytes"]) for one in memory]
            share = f"{row['pass_share'] * 100:.1f} %"
            rows.append([version, row["layers"], row["model"], *figures, share])
    return table(columns, rows, names=3)


_POLICIES = "dots_saveable", FLOOR_POLICY


def _frontier() -> Iterator[str]:
    """Of the oldest JAX that was measured: each program's memory and work under budgets."""
    version, entry = _oldest(f"{H100.results}.json")
    programs = frontiers(H100, entry["programs"])
    shown = _shown(programs)
    columns = [f"program, jax {version}", "no checkpoint"]
    for policy in _POLICIES:
        columns += [f"`{policy}`", f"`{shown}{{budget=…}}` there"]
    rows = (_frontier_cells(frontier, shown) for frontier in programs.values())
    yield from table([*columns, "the floor"], rows)
    picture = RESULTS / drawing(H100, version)
    if picture.exists():
        yield ""
        yield f"![added work over memory, jax {version}](../{picture.relative_to(ROOT)})"


def _frontier_cells(frontier: Frontier, shown: str) -> list[str]:
    points = frontier.passes[shown]
    cells = [frontier.title, frontier.mebi(frontier.none)]
    for policy in (point for point in frontier.policies if point.label in _POLICIES):
        cells += [_point(frontier, policy), _point(frontier, _cheapest_within(points, policy))]
    floor = min(points, key=lambda point: (point.step_bytes, point.flops))
    return [*cells, _point(frontier, floor)]


def _cheapest_within(points: Sequence[BudgetPoint], policy: Point) -> Point | None:
    """The point of least work that takes no more memory than the policy."""
    within = [point for point in points if point.step_bytes <= policy.step_bytes]
    return min(within, key=lambda point: (point.flops, point.step_bytes), default=None)


def _point(frontier: Frontier, point: Point | None) -> str:
    return "none" if point is None else f"{frontier.mebi(point)} ({frontier.added(point)})"


def _budgets() -> Iterator[str]:
    """The demo's frontier, of the oldest JAX that was measured."""
    version, entry = _oldest("budgets_h100.json")
    columns = [f"spec, jax {version}", "predicted, MiB", "XLA, MiB", "added time", "recomputed"]
    rows = [
        [
            f"`{each['spec']}`",
            _mebi(each["predicted_temp_bytes"]),
            _mebi(each["temp_bytes"]),
            f"{1e3 * each['added_seconds']:.3f} ms",
            f"{each['added_flops'] / 1e9:.2f} GFLOP",
        ]
        for each in entry["programs"]["demo"]["points"]
    ]
    yield from table(columns, rows)


def _capture() -> Iterator[str]:
    """Of the oldest JAX that was measured: thunks in graphs, of all, and the number of graphs.

    The rows are the steps that `capture` changes on one device.
    """
    version, entry = _oldest("capture_h100.json")
    by_name: dict[str, dict[int, dict[str, Any]]] = {}
    for row in entry["programs"]:
        by_name.setdefault(row["title"], {})[row["devices"]] = row
    columns = [f"thunks in graphs, H100, jax {version}"]
    for devices in DEVICES:
        place = "1 device" if devices == 1 else f"{devices} devices"
        columns += [f"{place}, XLA alone", f"{place}, `capture{{loops=on}}`"]
    yield from table(
        columns,
        (
            [title, *cells]
            for title, rows in by_name.items()
            if (cells := list(_captured(rows)))[0] != cells[1] and not title.startswith("4 x")
        ),
    )


def _pipeline() -> Iterator[str]:
    """Of the oldest JAX that was measured: pipelines beside FSDP on 8 devices, one of them."""
    version, entry = _oldest("pipeline_h100.json")
    columns = [f"H100, jax {version}", "checkpoint", "spec"]
    columns += ["temporaries, MiB", "collectives, MiB", "permutes in loops", "gathers in loops"]
    rows = (
        [
            row["mesh"] + (", FSDP" if "data" in row["weights"] else ""),
            row["policy"],
            f"`{row['spec']}`",
            _mebi(row["temp_bytes"]),
            _mebi(row["all"]),
            str(row["counts"].get("collective-permute in loops", 0)),
            str(row["counts"].get("all-gather in loops", 0)),
        ]
        for row in entry["rows"].values()
        if row["mesh"].startswith(("data 8", "stage 8")) and "remat" not in row["spec"]
    )
    yield from table(columns, rows, names=3)


def _maxtext() -> Iterator[str]:
    """Of each program and policy: memory and added work, beside `fit` with that memory."""
    columns = ["program", "`remat_policy`", "MiB", "work", "`fit`, MiB", "work"]
    _, entry = _oldest("maxtext.json")
    rows: list[list[str]] = []
    for program, measured in entry["programs"].items():
        *policies, base = measured["policies"]
        for policy, budget in zip(policies, measured["budgets"], strict=True):
            assert 0 <= budget["budget_bytes"] - policy["step_bytes"] < MEBI_BYTES
            rows.append([program, f"`{policy['label']}`", *_step_cells(policy, base)])
            rows[-1] += _step_cells(budget, base)
    yield from table(columns, rows, names=2)


def _step_cells(point: dict[str, Any], base: dict[str, Any]) -> Iterator[str]:
    """A step's memory, and the work that it adds to another's."""
    work, least = (each["product_flops"] + each["elementwise_flops"] for each in (point, base))
    yield _mebi(point["step_bytes"])
    yield f"{work / least - 1:.1%}".replace("%", " %")


def _dump_cost() -> Iterator[str]:
    """Of the oldest JAX that was measured: what it costs where no step is chosen."""
    version, entry = _oldest("dump_cost.json")
    columns = [
        f"jax {version}, no step chosen: a training step of",
        "takes, of its time without dumps",
    ]
    yield from table(columns, map(_cost_cells, entry["steps"]))
    yield ""
    memory, disk = (
        " to ".join(
            f"{pick(row[key] for row in entry['modules']) / 1024:.0f}" for pick in (min, max)
        )
        for key in ("memory_bytes", "disk_bytes")
    )
    bounds = entry["bounds"]
    yield f"Of each live module hloom keeps {memory} KiB in memory and {disk} KiB on disk, and in a"
    most_mebi = bounds["disk_bytes"] >> 20
    yield f"process {bounds['modules']} modules and {most_mebi} MiB of disk at most."


def _cost_cells(row: dict[str, Any]) -> list[str]:
    """A step's time, and its ratio with quartiles."""
    low, high = row["configured"]["quartiles"]
    step_ms = row["step_s"]["annotated"] * 1000
    return [f"{step_ms:.3g} ms", f"{row['configured']['ratio']:.3f} ({low:.3f} to {high:.3f})"]


def _captured(rows: dict[int, dict[str, Any]]) -> Iterator[str]:
    for devices in DEVICES:
        yield cell(rows[devices]["alone"])
        yield cell(rows[devices]["captured"])


def _mebi(size_bytes: int) -> str:
    return f"{size_bytes / MEBI_BYTES:.0f}"


def _oldest(name: str) -> tuple[str, Any]:
    """The oldest JAX that was measured, and its entry."""
    version, entry = next(iter(_read(name).items()))
    return version, entry


def _read(name: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return report


PAGES: dict[str, dict[str, Callable[[], Iterable[str]]]] = {
    "README.md": {"h200": front_page},
    "docs/graphs.md": {"capture": _capture},
    "docs/dumps.md": {"dump_cost": _dump_cost},
    "docs/budgets.md": {
        "frontier": _budgets,
        "errors": lambda: summary(_oldest("budgets_h100.json")[1]),
    },
    "docs/split.md": {"split": lambda: split_summary(_oldest("split_h100.json")[1])},
    "docs/stages.md": {"stages": lambda: stages_summary(_oldest("stages_h100.json")[1])},
    "docs/pipeline.md": {"pipeline": _pipeline},
    "docs/maxtext.md": {"maxtext": _maxtext},
    "docs/system.md": {"packages": _packages},
    "docs/targets.md": {"targets": _targets},
    "docs/results.md": {
        "figures": _figures,
        "demo": _demo,
        "h100": _h100,
        "frontier": _frontier,
        "gpu": lambda: results_section(RESULTS),
    },
}
"""The pages, and what writes each of their generated sections."""


if __name__ == "__main__":
    main()
