"""The table at the end of a program."""

from __future__ import annotations

import dataclasses
import io
import re

import pytest
from support import RunPython
from support.records import MIB, recorded

from hloom.log import summary
from hloom.record import CompileRecord

pytestmark = pytest.mark.once

STEP = recorded(compiles=3, temp_bytes_before=24 * MIB, before_is_measured=True)
SMALL = dataclasses.replace(
    STEP, module="jit_iota", changed=False, temp_bytes=0, compiles=1, pass_s=0.25, compile_s=1.0
)
FORWARD = dataclasses.replace(STEP, module="jit_eval", changed=False, compiles=1)


def table(monkeypatch: pytest.MonkeyPatch, *records: CompileRecord, width: int = 160) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(summary, "records", lambda: records)
    out = io.StringIO()
    summary.print_summary(out)
    return [re.sub(" {2,}", " | ", line.strip()) for line in out.getvalue().splitlines()]


def test_programs_of_weight_have_a_row_each(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = dataclasses.replace(FORWARD, module="jit_x", fell_back="pass 'remat' failed [in] plan")
    missed = dataclasses.replace(
        STEP, module="jit_y", complaint="too much", before_is_measured=False
    )
    unknown = dataclasses.replace(SMALL, temp_bytes=None)
    records = (SMALL, STEP, SMALL, FORWARD, failed, missed, unknown)
    assert table(monkeypatch, *records) == [
        "hloom",
        "program | temporaries | compiles | passes | XLA",
        "jit_train_step | 24.0 → 12.0 MiB | 3 | 1.50 s | 30.0 s",
        "jit_eval | 12.0 MiB | 1 | 1.50 s | 30.0 s | unchanged",
        "jit_x | 12.0 MiB | 1 | 1.50 s | 30.0 s | as it was: pass 'remat' failed [in] plan",
        "jit_y | about 24.0 → 12.0 MiB | 3 | 1.50 s | 30.0 s | budget not held",
        "3 smaller programs | 3 | 750 ms | 3.00 s",
        "in all | 11 | 6.75 s | 2 min 3 s",
    ]


def test_no_figures_and_no_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HLOOM_LOG_MIN_SIZE", "0")
    unknown = dataclasses.replace(SMALL, temp_bytes=None)
    assert (
        table(monkeypatch, unknown)[-1] == "jit_iota | not known | 1 | 250 ms | 1.00 s | unchanged"
    )
    assert table(monkeypatch) == ["hloom: no program was compiled with passes."]


SCRIPT = """
import jax, jax.numpy as jnp, numpy as np
f = jax.jit(jax.grad(lambda x: jnp.tanh(jnp.sin(x)).sum()))
f(np.ones(2**18, np.float32))
print("end")
"""


def test_it_is_printed_at_the_end_where_it_is_asked_for(run_python: RunPython) -> None:
    asked = {"JAX_HLOOM": "remat", "HLOOM_LOG_MIN_SIZE": "0"}
    line, title, head, row = run_python(SCRIPT, HLOOM_LOG="summary", **asked).stderr.splitlines()
    assert line.startswith("hloom: jit__lambda: ")
    assert title.strip() == "hloom"
    assert head.split() == ["program", "temporaries", "compiles", "passes", "XLA"]
    assert row.startswith("jit__lambda ")
    assert run_python(SCRIPT, HLOOM_LOG="on", **asked).stderr.startswith("hloom: jit__lambda: ")
