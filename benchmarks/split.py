"""A GPT's step as a forward and a backward program, compiled for an H100, beside JAX's own.

    python -m benchmarks.split          (needs the extra cuda13; no GPU; about 6 minutes)

`hloom.split` without a bound and under two, and `jax.fwd_and_bwd`: what crosses, what XLA gives the
two programs, and the matrix products of both. Writes benchmarks/results/split_h100.json, which
keeps one entry for each version of JAX it was run with, and split_h100.md, the same as a table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax

import hloom
from benchmarks.common.flops import executed_flops
from benchmarks.common.h100 import placement
from benchmarks.common.measure import (
    Benchmark,
    Columns,
    figure,
    mebi,
    section,
    table_of,
    text,
    tree_bytes,
    without_cache,
)
from benchmarks.common.products import executed_products
from benchmarks.programs.gpt import Gpt
from hloom._jax.executables import memory_figures

BOUNDS = (None, "1600MiB", "300MiB")


def main() -> None:
    """Measures with the JAX that runs this, and writes both files."""
    sharding = placement()
    without_cache()
    rows: list[dict[str, Any]] = []
    for scanned in (False, True):
        program = Gpt(scanned)
        layers = {"layers": "scanned" if scanned else "unrolled"}
        lowered = program.lower(sharding)
        whole = _figures(lowered)
        rows.append(layers | {"way": "one program", "work": 1.0} | _named(whole, "backward"))
        flops = executed_flops(lowered.compiler_ir()).products
        for row in (_jax(program, sharding), *(_split(program, sharding, b) for b in BOUNDS)):
            rows.append(layers | row | {"work": row["flops"] / flops})
            print(rows[-1], flush=True)
    print(BENCHMARK.write(rows=rows))


def _jax(program: Gpt, sharding: Any) -> dict[str, Any]:
    arguments = program.parameters(sharding), program.tokens(sharding)
    halves: Any = jax.fwd_and_bwd(program.loss, argnums=0)
    fwd, bwd = halves
    y, residuals = jax.eval_shape(fwd, *arguments)
    placed = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding),
                          (residuals, y))  # fmt: skip
    copied = tree_bytes(residuals.args_res)
    return {"way": "`jax.fwd_and_bwd`", "crosses": tree_bytes(residuals), "copied": copied} | _both(
        fwd.lower(*arguments), bwd.lower(*placed)
    )


def _split(program: Gpt, sharding: Any, bound: str | None) -> dict[str, Any]:
    arguments = program.parameters(sharding), program.tokens(sharding)
    fwd, bwd = hloom.split(program.loss, residuals=bound)
    y, residuals = fwd.eval_shape(*arguments)
    way = "`hloom.split`" if bound is None else f"`residuals={bound}`"
    return {"way": way, "crosses": residuals.nbytes, "copied": 0} | _both(
        fwd.lower(*arguments), bwd.lower(residuals, y)
    )


def _both(fwd: Any, bwd: Any) -> dict[str, Any]:
    """The figures of two programs, and their matrix products together."""
    modules = fwd.compiler_ir(), bwd.compiler_ir()
    return {
        **_named(_figures(fwd), "forward"),
        **_named(_figures(bwd), "backward"),
        "products": sum(map(executed_products, modules)),
        "flops": sum(executed_flops(module).products for module in modules),
    }


def _figures(lowered: Any) -> dict[str, int | None]:
    found = memory_figures(lowered.compile().runtime_executable())
    return {"temp": found.temp_bytes, "out": found.output_bytes, "step": found.step_bytes}


def _named(figures: dict[str, int | None], half: str) -> dict[str, int | None]:
    return {f"{half}_{name}": value for name, value in figures.items()}


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    columns: Columns = {
        "layers": text("layers"),
        "": text("way"),
        "crosses": _known(mebi("crosses"), "crosses"),
        "of it copies of arguments": _known(mebi("copied"), "copied"),
        "results of forward, XLA": _known(mebi("forward_out", 1), "forward_out"),
        "temporaries of forward": _known(mebi("forward_temp"), "forward_temp"),
        "temporaries of backward": mebi("backward_temp"),
        "backward in all": mebi("backward_step"),
        "FLOPs of products": figure("work", ".3f"),
    }
    return section(f"## jax {version}, Python {entry['python']}", columns, entry["rows"], names=2)


def summary(entry: dict[str, Any]) -> list[str]:
    """The table of what crosses, and what that costs, for a page of the documentation."""
    rows = [row for row in entry["rows"] if "crosses" in row]
    columns: Columns = {
        "layers": text("layers"),
        "": text("way"),
        "crosses": mebi("crosses"),
        "temporaries of backward": mebi("backward_temp"),
        "backward in all": mebi("backward_step"),
        "products": figure("work", ".3f"),
    }
    return table_of(columns, rows, names=2)


def _known(cell: Any, key: str) -> Any:
    return lambda row: cell(row) if key in row else ""


BENCHMARK = Benchmark(
    "split_h100",
    "split",
    "A GPT's step as a forward and a backward program, compiled for an H100",
    "12 layers, width 768, 8 heads, vocabulary 8192, batch 8, sequence 1024, bfloat16, plain "
    "attention (`benchmarks/programs/gpt.py`), in MiB. What crosses is written by the forward "
    "program and held until the backward program has read it. *Backward in all* is its arguments, "
    "results and temporaries. The FLOPs of matrix products of both programs are in proportion to "
    "those of `value_and_grad` as one program, the first row, whose figures stand under backward. "
    "The figures are of a compile without a GPU: they hold for memory and not for speed.",
    _tables,
)


if __name__ == "__main__":
    main()
