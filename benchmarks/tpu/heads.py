"""What XLA:TPU keeps of the gradients of rows for two products: loss heads and the like.

    python -m benchmarks.tpu.heads     (needs the extra tpu; no TPU; some minutes)

A product makes rows of logits, and two products read what follows elementwise from them and from
values with a number for each row: is that made in each product again, or once, in memory? Writes
benchmarks/results/heads_tpu.json, which keeps one entry for each version of JAX it was run with,
and heads_tpu.md, the same as a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.mlir import ir

from benchmarks.common.measure import Benchmark, Columns, code, mebi, section, text
from hloom import targets
from hloom._jax.executables import memory_figures
from hloom._jax.execution import compile_module
from hloom._jax.options import OPTION
from hloom.passes.analysis.memory_model.targets import memory_rules
from hloom.passes.analysis.memory_model.tracer import predict
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.ir.clone import clone_module
from hloom.targets import deviceless

TARGET = "v5p"


class Rows(NamedTuple):
    """Rows of logits `x`, and what has a number for each: maximum, sum, label, weight."""

    x: jax.Array
    m: jax.Array
    z: jax.Array
    hot: jax.Array
    g: jax.Array

    @property
    def e(self) -> jax.Array:
        return jnp.exp(self.x - self.m)


FORMS: dict[str, Callable[[Rows], jax.Array]] = {
    "g * ((1 + log(z)) * e / z - hot)": lambda r: r.g * ((1 + jnp.log(r.z)) * r.e / r.z - r.hot),
    "g * (e / z - hot)": lambda r: r.g * (r.e / r.z - r.hot),
    "g * (e * (1 / z) - hot)": lambda r: r.g * (r.e * (1 / r.z) - r.hot),
    "g * (exp(x - (m + log(z))) - hot)": lambda r: (
        r.g * (jnp.exp(r.x - (r.m + jnp.log(r.z))) - r.hot)
    ),
    "g * e / z": lambda r: r.g * (r.e / r.z),
    "e / z": lambda r: r.e / r.z,
    "g * e": lambda r: r.g * r.e,
    "g * x / z": lambda r: r.g * (r.x / r.z),
    "g * x * z - hot": lambda r: r.g * r.x * r.z - r.hot,
    "g * tanh(x)": lambda r: r.g * jnp.tanh(r.x),
}
"""What two products read; `e` is exp(x - m)."""

_MAXTEXT, _SOFTMAX, _INVERSE, _LOGS, _WEIGHTED, *_OTHERS = FORMS

CASES = (
    *(((8192, 768, 4096), form) for form in (_MAXTEXT, _LOGS)),
    *(((16384, 768, 2048), form) for form in (_SOFTMAX, _WEIGHTED, "e / z")),
    *(((8192, 768, 8192), form) for form in (_SOFTMAX, _INVERSE, _LOGS)),
    *(((8192, 768, 8320), form) for form in (_LOGS,)),
    *(((4096, 1024, 16000), form) for form in (_MAXTEXT, _SOFTMAX, _INVERSE, _LOGS)),
    *(((4096, 768, 16384), form) for form in _OTHERS),
)
"""Rows, the width that is summed, and elements of a row; and what is read."""


def main() -> None:
    """Compiles every case with the JAX that runs this, and writes both files."""
    deviceless.prepare()
    sharding = deviceless.placement(TARGET)
    rows = []
    for shape, form in CASES:
        rows.append({"shape": list(shape), "form": form, **_measured(shape, form, sharding)})
        print(rows[-1], flush=True)
    BENCHMARK.write(rows=rows)


def _measured(shape: tuple[int, int, int], form: str, sharding: Any) -> dict[str, int]:
    module = lowered(shape, FORMS[form], sharding).compiler_ir()
    [device] = sharding.mesh.devices.flat
    executable = compile_module(clone_module(module), [device], {OPTION: "off"})
    rows, _, elements = shape
    return {
        "logits_bytes": rows * elements * 2,
        "temp_bytes": memory_figures(executable).temp_bytes or 0,
        "predicted_bytes": predicted(module),
    }


def lowered(
    shape: tuple[int, int, int], form: Callable[[Rows], jax.Array], sharding: Any = None
) -> Any:
    """A head whose gradients are by a form, lowered."""
    rows, width, elements = shape

    def head(x: jax.Array, w: jax.Array, labels: jax.Array, g: jax.Array) -> tuple[Any, ...]:
        narrow = w.astype(jnp.bfloat16)
        logits = (x @ narrow).astype(jnp.float32)
        hot = (labels[:, None] == jnp.arange(elements)[None, :]).astype(jnp.float32)
        m = logits.max(-1, keepdims=True)
        shifted = logits - m
        z = jnp.exp(shifted).sum(-1, keepdims=True)
        loss = -(hot * (shifted - jnp.log(z))).sum()
        gradient = form(Rows(logits, m, z, hot, g)).astype(jnp.bfloat16)
        return loss, (x.T @ gradient).astype(jnp.float32), gradient @ narrow.T

    def array(*sizes: int, of: str) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sizes, of, sharding=sharding)

    return jax.jit(head).lower(
        array(rows, width, of="bfloat16"),
        array(width, elements, of="float32"),
        array(rows, of="int32"),
        array(rows, 1, of="float32"),
    )


def predicted(module: ir.Module) -> int:
    """Temporaries by hloom's model."""
    target = targets.load(TARGET)
    prepared = clone_module(module)
    Pipeline.parse("inline,cse,free-constants").run(prepared, target=target)
    with prepared.context:
        return predict(prepared, rules=memory_rules(target)).temp_bytes


_COLUMNS: Columns = {
    "rows": text(("shape", 0)),
    "width": text(("shape", 1)),
    "elements of a row": text(("shape", 2)),
    "read by two products": code("form"),
    "logits, MiB": mebi("logits_bytes"),
    "XLA": mebi("temp_bytes"),
    "predicted": mebi("predicted_bytes"),
}


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    title = f"## jax {version}, Python {entry['python']}"
    yield from section(title, _COLUMNS, entry["rows"], names=4)


BENCHMARK = Benchmark(
    "heads_tpu",
    "tpu.heads",
    "What XLA:TPU keeps of a head for two products",
    "A product makes bf16 logits `x`, of which the loss takes the rows' maximum `m` and the sum "
    "`z` of `e = exp(x - m)`. Two products read the form named, in bf16; `hot` is one at the "
    "row's label, `g` a weight for each row. Temporaries on a TPU v5p, compiled without one, in "
    "MiB: twice the logits where the form is kept in memory, once where each product makes it "
    "again.",
    _tables,
)


if __name__ == "__main__":
    main()
