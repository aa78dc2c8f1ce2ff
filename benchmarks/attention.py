"""Temporaries of models with attention on an H100: as they are, by the pass, and by hand.

    python -m benchmarks.attention [MODEL ...]          (an hour for all; no GPU)

Each model is compiled for an H100 without one: as it is written, under `attention`, and written
with `jax.nn.dot_product_attention(implementation="cudnn")`. Then GPTs of twelve layers, with
recomputation, and those of 1,024 tokens at four budgets with `attention` as a move of `fit`; and
libraries' own modules and models (Hugging Face's with `transformers<5`), as they are; and how long
the pass plans, also where there is no attention. XLA's
figures leave out the scratch memory that cuDNN asks for on a GPU. Nothing ran.

Writes benchmarks/results/attention.json and attention.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

import hloom
from benchmarks.common.measure import Benchmark, Columns, figure, mebi, section, text, without_cache
from benchmarks.programs import attention_libraries, lstm, resnet, unet
from benchmarks.programs.attention_libraries import LIBRARIES
from benchmarks.programs.attentions import MODELS
from benchmarks.programs.gpt import Gpt
from hloom import targets
from hloom._jax.executables import memory_figures
from hloom.passes.attention import Attention
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.ir.clone import clone_module
from hloom.targets import deviceless

TARGET = "h100_sxm"

GPTS = {
    f"{'scanned' if scanned else 'unrolled'}, {length}": Gpt(scanned=scanned, sequence=length)
    for length in (1024, 4096)
    for scanned in (False, True)
}
BUDGETS = ("4GiB", "2GiB", "1GiB", "768MiB")
"""Of the whole step: arguments and results are about 360 MiB of it."""

WITHOUT = {"ResNet-50": resnet.program, "U-Net": unet.program, "LSTM": lstm.program}
"""Steps without attention."""

PLANNING = "planning"

MOVE = "fit{{budget={} moves=recompute+attention+chunk}}"

LIBRARY_SPEC = "attention{min_keys=128}"
"""The vision transformer has fewer keys than the pass takes unasked."""

SPECS = ("off", "attention", "remat", "attention,remat", "attention,fit{budget=min}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Compiles with the JAX that runs this, and writes the files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention")
    at_budgets = {f"fit, {name}": name for name in GPTS if name.endswith(", 1024")}
    names = [*MODELS, *GPTS, *at_budgets, *LIBRARIES, PLANNING]
    parser.add_argument("models", nargs="*", metavar="MODEL", help="all where none is named")
    chosen = parser.parse_args(arguments).models or names
    deviceless.prepare()
    without_cache()
    for name in chosen:
        before = BENCHMARK.before()
        models = {row["model"]: row for row in before.get("models", ())}
        gpts = {row["model"]: row for row in before.get("gpts", ())}
        budgets = {(row["model"], row["budget"]): row for row in before.get("budgets", ())}
        libraries = {row["model"]: row for row in before.get("libraries", ())}
        planning = before.get("planning", [])
        if name in MODELS:
            models[name] = _model(name)
        elif name in GPTS:
            gpts[name] = _gpt(name)
        elif name in LIBRARIES:
            libraries[name] = _library(name)
        elif name == PLANNING:
            planning = [*_planning()]
        else:
            budgets |= {(row["model"], row["budget"]): row for row in _fits(at_budgets[name])}
        print(
            BENCHMARK.write(
                models=[models[each] for each in MODELS if each in models],
                gpts=[gpts[each] for each in GPTS if each in gpts],
                budgets=[*budgets.values()],
                libraries=[libraries[each] for each in LIBRARIES if each in libraries],
                planning=planning,
            )
        )


def _model(name: str) -> dict[str, Any]:
    model, placement = MODELS[name], deviceless.placement(TARGET)
    lowered = model.lower(placement)
    row: dict[str, Any] = {"model": name}
    for key, spec in (("off_bytes", "off"), ("attention_bytes", "attention")):
        row[key] = _temporaries(lowered, spec)
    row["plan"] = _plan()
    row["by_hand_bytes"] = _by_hand(functools.partial(model.lower, fused=True))
    return row


def _by_hand(lower: Callable[[Any], Any]) -> int:
    with deviceless.attention_lowered_for(TARGET):
        lowered = lower(deviceless.placement(TARGET))
    return _temporaries(lowered, "off")


def _library(name: str) -> dict[str, Any]:
    lowered = attention_libraries.lower(name, deviceless.placement(TARGET))
    off = _temporaries(lowered, "off")
    found = _temporaries(lowered, LIBRARY_SPEC)
    return {"model": name, "off_bytes": off, "attention_bytes": found, "plan": _plan()}


def _planning() -> Iterator[dict[str, Any]]:
    """Seconds of the processor: of `attention` behind the passes that it needs, and of `fit`."""
    target = targets.load(TARGET)
    steps = {name: each.lower(deviceless.placement(TARGET)) for name, each in GPTS.items()}
    for name, program in WITHOUT.items():
        step, given = program(lambda block: block)
        steps[name] = jax.jit(step).trace(*given).lower(lowering_platforms=("cuda",))
    for name, lowered in steps.items():
        module = clone_module(lowered.compiler_ir())
        Pipeline.parse("inline,drop-constraints,cse").run(module, target=target)
        start_s = time.process_time()
        with module.context:
            Attention().plan(module, target)
        attention_s = time.process_time() - start_s
        start_s = time.process_time()
        Pipeline.parse("fit").run(clone_module(lowered.compiler_ir()), target=target)
        fit_s = time.process_time() - start_s
        yield {"model": name, "attention_s": attention_s, "fit_s": fit_s}


def _gpt(name: str) -> dict[str, Any]:
    lowered = GPTS[name].lower(deviceless.placement(TARGET))
    by_hand = dataclasses.replace(GPTS[name], fused=True)
    row = {"model": name, "by_hand_bytes": _by_hand(by_hand.lower)}
    return row | {spec: _temporaries(lowered, spec) for spec in SPECS}


def _fits(name: str) -> Iterator[dict[str, Any]]:
    lowered = GPTS[name].lower(deviceless.placement(TARGET))
    for budget in BUDGETS:
        found = _temporaries(lowered, MOVE.format(budget))
        effect = hloom.records()[-1].runs[-1].effect
        yield {"model": name, "budget": budget, "temp_bytes": found, "effect": effect}


def _temporaries(lowered: Any, spec: str) -> int:
    compiled = lowered.compile(compiler_options={"hloom": spec})
    return memory_figures(compiled.runtime_executable()).temp_bytes or 0


def _plan() -> str:
    runs = hloom.records()[-1].runs
    return next(run.summary for run in runs if run.name == "attention")


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    yield from section(f"Models of four layers, jax {version}", COLUMNS, entry["models"])
    yield from section(f"GPT of twelve layers, jax {version}", GPT_COLUMNS, entry["gpts"])
    yield from section(
        f"GPT at budgets of the whole step, jax {version}", BUDGET_COLUMNS, entry["budgets"]
    )
    yield from section(
        f"Four layers of libraries, 1,024 tokens if not named, `{LIBRARY_SPEC}`, jax {version}",
        LIBRARY_COLUMNS,
        entry.get("libraries", []),
    )
    yield from section(
        f"Seconds of the processor to plan, jax {version}",
        PLANNING_COLUMNS,
        entry.get("planning", []),
    )


COLUMNS: Columns = {
    "model": text("model"),
    "as it is, MiB": mebi("off_bytes"),
    "`attention`": mebi("attention_bytes"),
    "by hand": mebi("by_hand_bytes"),
    "plan": text("plan"),
}
LIBRARY_COLUMNS: Columns = {key: each for key, each in COLUMNS.items() if key != "by hand"}
PLANNING_COLUMNS: Columns = {
    "step": text("model"),
    "`attention`": figure("attention_s", ".3f"),
    "`fit` without it": figure("fit_s", ".2f"),
}
GPT_COLUMNS: Columns = {
    "model": text("model"),
    **{f"`{spec}`, MiB": mebi(spec) for spec in SPECS},
    "by hand": lambda row: mebi("by_hand_bytes")(row) if "by_hand_bytes" in row else "",
}
BUDGET_COLUMNS: Columns = {
    "model": text("model"),
    "budget": text("budget"),
    "temporaries, MiB": mebi("temp_bytes"),
    "what `fit` did": text("effect"),
}

BENCHMARK = Benchmark(
    "attention",
    "attention",
    "Attention in a fused kernel",
    "Temporary memory by compiles for an H100 without one. By hand is the same model with "
    '`jax.nn.dot_product_attention(implementation="cudnn")`. The scratch memory that cuDNN asks '
    "for on a GPU is in no figure. Nothing here ran on a GPU.",
    _tables,
)

if __name__ == "__main__":
    main()
