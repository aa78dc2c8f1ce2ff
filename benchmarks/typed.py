"""What a newcomer types on the first day, right and wrong, and what hloom answers to each.

    python -m benchmarks.typed [--before PYTHON]        (about 5 minutes, twice that with --before)

Each is a process of its own, with a small step on a CPU. PYTHON has an older hloom installed: its
answers stand beside those of today; without it those of the last time stay.

Writes benchmarks/results/typed.json and typed.md.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.common.commits import ROOT, git_commit
from benchmarks.common.measure import Benchmark, Columns, section

STEP = """
import jax, jax.numpy as jnp
def loss(w, x):
    for _ in range(4):
        x = jnp.tanh(x @ w)
    return (x.astype(jnp.float32) ** 2).mean()
@jax.jit
def train_step(w, x):
    l, g = jax.value_and_grad(loss)(w, x)
    return w - 0.1 * g, l
w, l = train_step(jnp.eye(512), jnp.ones((2048, 512)))
print("loss", float(l))
"""
ADDED = "import jax; print(jax.jit(lambda x: x + 1{})(1.0))"
UPDATED = 'jax.config.update("jax_hloom", "fit{budget=60}")'

SPECS = (
    # What is right, and budgets.
    *("fit", "fti", "remat{bugdet=60GiB}", "fit{budget=0}", "fit{budget=60}", "fit{budget=60GB}"),
    *("fit{budget=60G}", "fit{budget=60gib}", "fit{budget=60 GiB}", "fit{budget=0.6}"),
    *("fit{budget=-1GiB}", "fit{budget=150%}", "fit{budget=900GiB}"),
    # Brackets, and more than one pass.
    *("fit{60%}", "fit=60%", "fit(budget=60%)", "fit:60%", "fit{budget=60%", "fit{budget:60%}"),
    *("fit{budget=60%};chunk", "fit chunk", "fit,fit", "remat,fit{budget=60%}"),
    *("chunk,accumulate", "accumulate{microbatches=3}"),
    *("fit{moves=recompute,chunk}", "fit{moves=remat}"),
    # Switches, and policies of other libraries.
    *("1", "on", "true", "0", "off", "", "none", "help", "full", "dots_saveable"),
    # What shells and files leave.
    *(
        '"fit{budget=60%}"',
        "'fit'",
        " fit ",
        "FIT",
        "remat{budget=60%,compiles=2}",
        "fitbudget=60%",
    ),
    *("remat{budget=60% compiles=2}",),
)
TYPED: dict[str, tuple[dict[str, str], str]] = {
    **{f"JAX_HLOOM={spec!r}": ({"JAX_HLOOM": spec}, STEP) for spec in SPECS},
    "HLOOM=fit": ({"HLOOM": "fit"}, STEP),
    "JAX_HLOM=fit": ({"JAX_HLOM": "fit"}, STEP),
    "HLOOM_DUMP=x JAX_HLOOM=fit": ({"HLOOM_DUMP": "x", "JAX_HLOOM": "fit"}, STEP),
    "HLOOM_LOG=debug JAX_HLOOM=fit": ({"HLOOM_LOG": "debug", "JAX_HLOOM": "fit"}, STEP),
    **{
        f"compiler_options={options}": ({}, ADDED.format(f", compiler_options={options}"))
        for options in ('{"hloom": "fti"}', '{"hlooom": "fit"}')
    },
    UPDATED: ({}, f"import jax; {UPDATED}; {ADDED.partition('; ')[2].format('')}"),
}
"""By what is typed, the variables and the program."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs each, and writes the files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.typed")
    parser.add_argument("--before", metavar="PYTHON", help="with an older hloom installed")
    parser.add_argument("--commit", help="of that hloom")
    chosen = parser.parse_args(arguments)
    kept = BENCHMARK.before()
    before = {row["typed"]: row["before"] for row in kept.get("rows", ())}
    rows = []
    for typed, (variables, program) in TYPED.items():
        print(typed, flush=True)
        if chosen.before:
            before[typed] = answer(chosen.before, variables, program)
        now = answer(sys.executable, variables, program)
        rows.append({"typed": typed, "before": before.get(typed), "now": now})
    commits = {
        "before": chosen.commit or kept.get("commits", {}).get("before"),
        "now": git_commit(),
    }
    BENCHMARK.write(commits=commits, rows=rows)


def answer(python: str, variables: dict[str, str], program: str) -> dict[str, Any]:
    """The exit status, how many lines are printed, and those that are no traceback.

    Where the program fails, these are the error's; a line of it that is longer is cut.
    """
    ours = {name: value for name, value in os.environ.items() if "HLOOM" not in name}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [python, "-c", program],
            # In a folder of its own a process imports the hloom that is installed.
            cwd=folder,
            env=ours | {"JAX_PLATFORMS": "cpu"} | variables,
            capture_output=True,
            text=True,
            timeout=300,
        )
    lines = (done.stderr + done.stdout).strip().splitlines()
    told = lines
    if done.returncode:
        errors = [number for number, line in enumerate(lines) if re.match(r"[\w.]+(Error|:)", line)]
        told = lines[errors[-1] if errors else -1 :]
    return {
        "exit": done.returncode,
        "lines": len(lines),
        "told": [re.sub(rf"(\S*/)?{re.escape(ROOT.name)}/", "", line)[:400] for line in told],
    }


def _cell(when: str, key: str) -> Any:
    def cell(row: dict[str, Any]) -> str:
        found = (row[when] or {}).get(key, "")
        text = " ⏎ ".join(found) if isinstance(found, list) else str(found)
        return text.replace("|", "\\|").replace("<", "&lt;")

    return cell


_ROWS: Columns = {
    "typed": lambda row: f"`{row['typed']}`",
    "exit before": _cell("before", "exit"),
    "lines": _cell("before", "lines"),
    "told before": _cell("before", "told"),
    "exit": _cell("now", "exit"),
    "lines now": _cell("now", "lines"),
    "told": _cell("now", "told"),
}


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    commits = entry["commits"]
    title = f"## jax {version}: {commits['before']}, and {commits['now']}"
    yield from section(title, _ROWS, entry["rows"], names=len(_ROWS))


BENCHMARK = Benchmark(
    "typed",
    "typed",
    "What a newcomer types, and what hloom answers",
    "Each line is a process of its own on a CPU: what it ends with, how many lines it prints, and "
    "these lines, of a program that fails without the traceback before its error.",
    _tables,
)


if __name__ == "__main__":
    main()
