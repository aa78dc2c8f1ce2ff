"""A dump with something in every section of a report, for the tests of reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hloom.dumps.collect.tracer import Execution
from support.dumps.samples import capture, write_step

HOSTILE = "<script>alert(1)</script>"
"""A name that a page must not take for its own."""

SMALL = 40
"""How many small modules run beside the large one."""

_LINE = "/home/user/model.py"

BARRIERS: dict[str, Any] = {
    "barriers": [
        {
            "kind": "entry",
            "site": f"entry of @write in @main, {_LINE}:12",
            "channel": 1,
            "replica_groups": [[0, 1, 2, 3], [4, 5, 6, 7]],
            "timeout_ms": 60000,
        }
    ],
    "served": [{"need": "exit of @write", "by": "all_reduce"}],
    "ordered": {"@write": 1, "stablehlo.all_reduce": 1},
    "order": [
        {"depth": 0, "what": "stablehlo.while", "name": "while", "source": f"{_LINE}:10"},
        {
            "depth": 1,
            "what": "barrier",
            "kind": "entry",
            "site": f"entry of @write in @main, {_LINE}:12",
            "name": "while/body/write",
            "source": f"{_LINE}:12",
        },
        {"depth": 1, "what": "@write", "name": "while/body/write", "source": f"{_LINE}:12"},
        {"depth": 1, "what": "stablehlo.all_reduce", "name": HOSTILE, "source": f"{_LINE}:13"},
    ],
}

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

LOOPS: dict[str, Any] = {
    "size": 8192,
    "chunks": 9,
    "length": 1000,
    "rest": 192,
    "seeds": ["tensor<8192x768xbf16> along axis 0"],
    "loops": [
        {
            "operations": 60,
            "share_of_products": 0.75,
            "ends": [f"reduce ({HOSTILE}, {_LINE}:21) reads the whole of a partial max"],
            "leaves": ["tensor<f32>, added up"],
        },
        {
            "operations": 4,
            "share_of_products": 0.25,
            "ends": [],
            "leaves": ["tensor<32768x768xbf16>, added up in f32"],
        },
    ],
}

LOGITS: dict[str, Any] = {
    "name": "jit(step)/jvp()/dot_general",
    "source": f"{_LINE}:20",
    "type": "tensor<8192x32768xbf16>",
    "bytes": 512 * 2**20,
}

IN_CHUNKS: dict[str, dict[str, Any]] = {
    "accumulate": {"batch": "the batch", "reason": f"{HOSTILE} reads all of the batch"},
    "chunk": {
        "temp_bytes_before": 600 * 2**20,
        "predicted_temp_bytes": 90 * 2**20,
        "regions": [
            {
                "id": "region-0",
                "in_loop": True,
                "dimension": "axis 0",
                "operations": 64,
                "products": 3,
                "bytes_before": 600 * 2**20,
                "bytes_after": 90 * 2**20,
            }
            | LOGITS
            | LOOPS
        ],
        "left": [LOGITS | {"reasons": ["axis 1 takes 3 loops", "axis 0 is sharded"]}],
    },
    "one-hot": {
        "accesses": [
            LOGITS
            | {
                "id": f"access-{number}",
                "form": form,
                "access": "read",
                "operation": f"stablehlo.{operation}",
            }
            for number, (form, operation) in enumerate(
                [("batch", "gather"), ("select", "scatter"), ("select", "scatter")]
            )
        ],
        "left": [
            LOGITS | {"operation": "stablehlo.gather", "reason": "not every row has an element"}
        ],
    },
}
"""Plans of passes that run work in chunks."""

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
        ("plan-05-barriers.json", BARRIERS),
        *((f"plan-06-{name}.json", plan) for name, plan in IN_CHUNKS.items()),
        ("captured.json", CAPTURED),
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
        hloom_dump=2,
        kind="module",
        module=f"jit_small_{number}_{HOSTILE}",
        process=0,
        step=3,
        compile={"changed": False},
    )
