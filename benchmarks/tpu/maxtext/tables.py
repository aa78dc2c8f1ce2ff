"""MaxText's policies beside hloom's budgets, as tables and as a plot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax

from benchmarks.common.h100 import MEBI_BYTES
from benchmarks.common.measure import Benchmark, Columns, code, figure, mebi, section, text
from benchmarks.common.tables import RESULTS
from benchmarks.frontier.points import BudgetPoint, Point
from benchmarks.frontier.report import Frontier, plot, program_tables, summary_table
from benchmarks.tpu.maxtext.programs import DECODERS, LEAST, MESHES

FULL = "full"

_NAMES = {"dense": "dense decoder", "experts": "mixture of experts"}

_ROUNDED = (
    "JAX rounds what the policy saves so that it is the same in both passes; what is computed "
    "again instead is rounded again, 5.7 in each pass"
)

REASONS: Mapping[tuple[str, str, str], str] = {
    ("experts", "FSDP x tensor", "full"): _ROUNDED,
    ("experts", "FSDP x tensor", "custom"): (
        "the first plan takes 2702 MiB, 12 over the budget; of those that hold the one that splits "
        "the loop over layers adds the least time by the model, which weighs all kernels and what "
        "is sent, and not work alone"
    ),
}
"""Why `fit` does not win a policy's point, by decoder, mesh and policy; told by people."""


def title_of(decoder: str, mesh: str) -> str:
    """What a decoder over a mesh is called."""
    return f"{_NAMES[decoder]}, {mesh}"


_PLACES = {title_of(decoder, mesh): (decoder, mesh) for decoder in DECODERS for mesh in MESHES}


def frontiers(entry: Mapping[str, Any]) -> dict[str, Frontier]:
    """What is measured: decoders over meshes with the policy that recomputes least and others."""
    found = {}
    for title, (decoder, mesh) in _PLACES.items():
        measured = entry["programs"].get(title, {})
        points = {one["label"]: Point(**one) for one in measured.get("policies", [])}
        none = points.pop(LEAST, None)
        if none is None or FULL not in points:
            continue
        budgets = [_budget_point(one) for one in measured.get("budgets", [])]
        budgets.sort(key=lambda point: point.budget_bytes or 0)
        found[title] = Frontier(
            title=title,
            none=none,
            policies=list(points.values()),
            passes={"fit": budgets} if budgets else {},
            failures={},
            reasons={
                ("fit", policy): why
                for (*place, policy), why in REASONS.items()
                if place == [decoder, mesh]
            },
            commits={"fit": ", ".join(dict.fromkeys(map(_commit, measured.get("budgets", []))))},
            floor_policy=FULL,
            policies_are="MaxText's policies",
            none_is=LEAST,
        )
    return found


def _budget_point(row: Mapping[str, Any]) -> BudgetPoint:
    return BudgetPoint(**{name: row[name] for name in row if name not in ("commit", "plan")})


def _commit(row: Mapping[str, Any]) -> str:
    """That of a row, short, with the "+" of one whose files differ."""
    found = row["commit"] or "not noted"
    return f"{found[:10]}{found[40:]}"


_COLUMNS: Columns = {
    "JAX_HLOOM": code("label"),
    "step, MiB": mebi("step_bytes"),
    "of the budget": figure("use", ".1%"),
    "work": figure("work", ".1%"),
    "of the first plan, predicted": mebi("first_predicted"),
    "taken": mebi("first_taken"),
    "compiles": text("compiles"),
    "sends, MiB": mebi("sent_bytes"),
    "collectives": text("collectives"),
    "commit": text("commit"),
    "plan": text("of"),
}


def _budget_rows(title: str, entry: Mapping[str, Any], none: Point) -> Iterator[dict[str, Any]]:
    decoder, _ = _PLACES[title]
    rows = entry["programs"][title].get("budgets", [])
    for row in sorted(rows, key=lambda one: one["budget_bytes"] or 0):
        point, budget = _budget_point(row), row["budget_bytes"]
        predicted, taken = next(iter(row["predictions"]), (None, None))
        yield row | {
            "use": row["step_bytes"] / budget if budget else None,
            "work": point.flops / none.flops - 1,
            "first_predicted": predicted,
            "first_taken": taken,
            "compiles": point.attempts,
            "commit": _commit(row),
            "of": "of today" if row["plan"] == entry["plans"][decoder] else "of before",
        }


def _tables(jax_version: str, entry: dict[str, Any]) -> Iterator[str]:
    measured = frontiers(entry)
    about = f"libtpu {entry['libtpu']}, Python {entry['python']}"
    yield from ("", f"## MaxText {entry['maxtext']}, jax {jax_version}, {about}", "")
    if budgeted := {name: one for name, one in measured.items() if one.passes}:
        yield from (f"![added work over memory]({_drawing(jax_version)})", "")
        yield from summary_table(budgeted)
    for title, frontier in measured.items():
        tera_flops = frontier.none.flops / 1e12
        yield from ("", f"### {title[0].upper()}{title[1:]}, jax {jax_version}", "")
        yield (
            f"`{LEAST}`: {frontier.mebi(frontier.none)} MiB, {tera_flops:.2f} TFLOP, "
            f"{frontier.none.sent_bytes / MEBI_BYTES:.0f} MiB sent in "
            f"{frontier.none.collectives} collectives."
        )
        yield ""
        yield from program_tables(frontier)
        if frontier.passes:
            rows = _budget_rows(title, entry, frontier.none)
            yield from section("", _COLUMNS, rows)
    for decoder, plan in entry["plans"].items():
        yield from ("", f"Least memory by the model, {decoder}, FSDP: {plan}.")


def draw(entry: Mapping[str, Any]) -> None:
    """Writes the plot of what is measured."""
    if measured := {name: one for name, one in frontiers(entry).items() if one.passes}:
        title = f"MaxText for four TPUs v5p, jax {jax.__version__}"
        plot(measured, title, RESULTS / _drawing(jax.__version__))


def _drawing(jax_version: str) -> str:
    return f"maxtext_{jax_version}.svg"


_WHAT_IT_IS = """\
The training step of two of MaxText's decoders, 8 layers scanned, width 1024, vocabulary 32000, 4
examples of 2048 tokens on each of four TPUs v5p: its default one, and `decoder_block=mixtral` with
4 experts, 2 a token, capacity 1.25. MaxText lowers it on a machine without a TPU under each of its
policies (`custom` keeps `context` and `out_proj`), and `fit` gets each policy's memory as its
budget on `minimal_with_context`, the policy that recomputes least, which is "as it is" here.
Memory is the peak of a step on one device, XLA's figure. Work is counted in the StableHLO module
that goes to XLA (`benchmarks/common/flops.py`), that of all devices, kernels of attention with it;
"added" and "work" are against `minimal_with_context`. What is sent is what each device sends in a
step, by XLA's text, in brackets in how many collectives, loops as often as they run. A policy's
point is *won* where some budget gave no more memory and no more work; "in products" only products
and kernels of attention count as work. In rows of before 2e75767cdb, and of policies that were
measured before it, what is reduce-scattered counts as sent four times: `full` over FSDP was 1140.5
MiB, and is 558.9. The other columns of the first table are those of
[frontier_h100](frontier_h100.md). A plan is "of before" where hloom plans the decoder's least
memory otherwise today."""


BENCHMARK = Benchmark("maxtext", "tpu.maxtext", "MaxText for four TPUs v5p", _WHAT_IT_IS, _tables)
