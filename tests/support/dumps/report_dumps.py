"""A dump with something in every section of a report, for the tests of reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hloom.dumps.collect.tracer import Execution
from hloom.passes.analysis.shardings.exchanges import Exchange
from hloom.passes.analysis.shardings.overview import LineExchanges, Overview
from hloom.passes.framework.structure import written
from hloom.passes.framework.tables import Described, Fact, Kind, Left, Table, left_table
from hloom.passes.framework.target import Speed
from hloom.passes.ir.names import SourceLine
from hloom.record import Sent
from support.dumps.samples import capture, write_step

HOSTILE = "<script>alert(1)</script>"
"""A name that a page must not take for its own."""

SMALL = 40
"""How many small modules run beside the large one."""

_LINE = "/home/user/model.py"


def _at(line: int, name: str = "", bytes: int = 0, times: int = 1) -> Described:
    source = SourceLine(f"{_LINE}:{line}")
    return Described(name, source, "tensor<8x16xbf16>", bytes, "stablehlo.add", times)


PLAN: dict[str, Any] = {
    "facts": [
        written(Fact("values moved", 3)),
        written(Fact("bytes moved", 5 * 2**20, Kind.BYTES)),
        written(Fact("by", f"{HOSTILE} by name", Kind.CODE)),
    ],
    "tables": [
        Table(
            "In order",
            {"what": Kind.TEXT, "waits": Kind.SECONDS, "share": Kind.SHARE, "where": Kind.VALUE},
            (
                ("in a loop", None, None, _at(10, "while")),
                ("entry barrier", 60.0, 0.75, _at(12, "while/body/write")),
                (HOSTILE, 2e-6, 0.001, _at(13, HOSTILE)),
            ),
            "One after the other.",
            (0, 1, 1),
        ).to_json(),
        Table(
            "Moved",
            {"takes": Kind.BYTES, "value": Kind.VALUE, "read by": Kind.VALUE, "work": Kind.FLOPS},
            tuple(
                (2**number, _at(number, "jit(step)/dot", 2**number, 3), (_at(7), _at(8)), 2e9)
                for number in range(40)
            ),
            more=2,
        ).to_json(),
        left_table([Left(_at(20, "jit(step)/mul", 512 * 2**20), "axis 1 takes 3 loops")]).to_json(),
    ],
}
"""A plan with every kind of cell, of a pass that hloom does not have."""

OLD_PLAN: dict[str, Any] = {"regions": [], "left": []}
"""As versions of hloom wrote them whose plans stated no tables."""

CAPTURED: dict[str, Any] = {
    "options": {"xla_gpu_graph_min_graph_size": 1},
    "coverage": {
        "thunks": 20,
        "captured": 18,
        "graphs": 2,
        "left_out": [
            {
                "kind": "kAllReduce",
                "instruction": f"all-reduce.{number}",
                "operation": "jit(step)/psum",
                "line": f"{_LINE}:13",
                "reason": "a collective",
            }
            for number in (1, 2)
        ],
    },
    "notes": ["the profiler switches graphs off"],
}

_SUMS = Exchange("all-reduce", ("model",), 4, 4, 2**20, 3, "8x16xbf16", f"{_LINE}:14", "add")
SENT: dict[str, Any] = written(
    Sent(
        {"all-reduce": _SUMS.sent_bytes},
        {"reduce-scatter": 3 * 2**20},
        Overview(
            (LineExchanges(_SUMS.line, (_SUMS,)),), (_at(15, "table", 2**30),), Speed()
        ).to_json(),
        "sends 4.50 MiB a step, 100 % of it at model.py:14",
    )
)

ATTEMPTS: list[dict[str, Any]] = [
    {
        "used": used,
        "predicted_step_bytes": 900_000,
        "step_bytes": step_bytes,
        "temp_bytes": step_bytes - 100_000,
        "added_flops": 2_000_000,
    }
    for used, step_bytes in ((False, 1_200_000), (True, 1_000_000))
]


def write_dump(to: Path, ran: Execution) -> Path:
    """Writes the dump of a step: a module that ran, made to have more, and many small ones."""
    step = write_step(capture(to, [ran])).parent
    module = step / "process-0" / "jit_scanned_step-0"
    for name, content in (
        ("plan-06-my-pass.json", PLAN),
        ("plan-07-old-pass.json", OLD_PLAN),
        ("captured.json", CAPTURED),
        ("sent.json", SENT),
        ("attempts.json", ATTEMPTS),
    ):
        (module / name).write_text(json.dumps(content), encoding="utf-8")
    edit_manifest(module, spec="remat{budget=1000KiB},barriers,capture")
    for number in range(SMALL):
        _write_small(step / "process-0" / f"jit_small-{number}", number)
    return step


def edit_manifest(folder: Path, **entries: object) -> None:
    """Sets entries of a folder's manifest."""
    file = folder / "manifest.json"
    manifest = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    file.write_text(json.dumps(manifest | entries), encoding="utf-8")


def _write_small(folder: Path, number: int) -> None:
    (folder / "xla").mkdir(parents=True)
    sizes = {"argument_bytes": 4, "output_bytes": 4, "alias_bytes": 0, "temp_bytes": number}
    (folder / "xla" / "memory.json").write_text(json.dumps(sizes), encoding="utf-8")
    (folder / "00-input.mlir").write_text("module @jit_small {}\n", encoding="utf-8")
    edit_manifest(
        folder,
        hloom_dump=3,
        kind="module",
        module=f"jit_small_{number}_{HOSTILE}",
        process=0,
        step=3,
        compile={"changed": False},
    )
