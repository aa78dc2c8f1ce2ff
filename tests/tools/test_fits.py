"""`hloom fits`, `hloom targets` and `hloom doctor`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import hloom
import hloom_cli as cli
from hloom import targets
from hloom._jax.devices import DeviceFacts
from hloom.tools import doctor

Run = Callable[..., tuple[int, str, str]]

TRAIN = """
import jax, jax.numpy as jnp

def loss(w, x):
    return (jax.lax.scan(lambda x, w: (x + jnp.tanh(x @ w), None), x, w)[0] ** 2).mean()

STEP = jax.jit(jax.grad(loss))

def sized(rows):
    spec = jax.ShapeDtypeStruct
    return STEP, spec((4, 64, 64), "float32"), spec((rows, 64), "float32")

def lowered(rows):
    step, *arguments = sized(rows)
    return step.trace(*arguments).lower(lowering_platforms=("cuda",))

def even(rows):
    if rows % 2:
        raise ValueError("rows must be even")
    return sized(rows)
"""


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run_main(*words: object) -> tuple[int, str, str]:
        status = cli.main([*map(str, words)])
        return status, *capsys.readouterr()

    return run_main


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "sized_train.py"
    file.write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    return file


def test_the_largest_size_for_each_target(run: Run, train: Path, tmp_path: Path) -> None:
    out_file = tmp_path / "fits.json"
    words = ("--target", "h100_sxm,v5e", "--most", 96, "--multiple", 32, "--json", out_file)
    status, out, err = run("fits", "sized_train.py:sized", *words)
    assert (status, err) == (0, "")
    first, head, h100, v5e, *rest = out.splitlines()
    assert first == "the largest size that fits a device, predicted; nothing is compiled"
    assert head.split()[0] == "target"
    assert h100.split()[:4] == ["h100_sxm", "63.3", "GiB", "96"]
    assert v5e.split()[0] == "v5e"
    assert rest == ["+ h100_sxm, v5e: larger sizes were not looked for.", f"wrote {out_file}"]
    assert all(len(line) <= 80 for line in (first, head, h100, v5e))
    written = json.loads(out_file.read_text())
    assert [row["as_it_is"]["size"] for row in written["rows"]] == [96, 96]


def test_a_function_may_give_a_lowered(run: Run, train: Path) -> None:
    status, out, err = run("fits", "sized_train:lowered", "--target", "h100_sxm", "--most", 8)
    assert (status, err) == (0, "")
    assert "8+" in out


@pytest.mark.once
@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("sized_train.py", "PROGRAM is FILE.py:FUNCTION or MODULE:FUNCTION, got 'sized_train.py'."),
        ("sized_train.py:sizd", "sized_train.py has no function 'sizd'. Did you mean 'sized'?"),
        ("none.py:f", "none.py: No such file"),
        ("no_such_module:f", "no_such_module cannot be imported: ModuleNotFoundError: No module"),
        ("broken.py:f", "broken.py cannot be imported: ZeroDivisionError: division by zero ("),
        ("broken.py:f", "broken.py:2)"),
        ("sized_train.py:even", "cannot be traced with size 1 (ValueError: rows must be even)."),
        ("sized_train.py:TRAIN_STEP", "has no function 'TRAIN_STEP'."),
    ],
)
def test_mistakes_are_told_in_a_line(run: Run, train: Path, program: str, said: str) -> None:
    Path("broken.py").write_text("x = 1\ny = x / 0\n")
    status, out, err = run("fits", program, "--target", "h100_sxm", "--most", 4)
    assert (status, out) == (1, "")
    assert err.startswith("hloom fits: error: ")
    assert said in err
    assert "Traceback" not in err


def test_a_multiple_helps_where_a_size_is_impossible(run: Run, train: Path) -> None:
    words = ("--target", "h100_sxm", "--most", 4, "--multiple", 2)
    assert run("fits", "sized_train.py:even", *words)[0] == 0


@pytest.mark.once
def test_an_unknown_target_is_told(run: Run, train: Path) -> None:
    status, _, err = run("fits", "sized_train.py:sized", "--target", "h100_sxn")
    assert status == 1
    assert err.startswith("hloom fits: error: --target: unknown target 'h100_sxn'. Did you mean")


# hloom targets


@pytest.mark.once
def test_the_targets_are_listed_in_80_columns(run: Run) -> None:
    status, out, err = run("targets")
    assert (status, err) == (0, "")
    assert all(len(line) <= 80 for line in out.splitlines())
    names = {line.split()[0] for line in out.splitlines() if not line.startswith(" ")}
    assert set(targets.names()) <= names


@pytest.mark.once
def test_a_target_tells_where_its_figures_are_from(run: Run) -> None:
    status, out, _ = run("targets", "a100_sxm_80")
    assert status == 0
    assert out.startswith("a100_sxm_80: NVIDIA A100-SXM4-80GB\n  memory 79.3 GiB, for a step 63.4")
    assert "a100_sxm_80.txtpb in xla/backends/gpu/target_config/specs" in out
    assert run("targets", "cpu")[1].startswith("cpu: the host as it is")
    status, _, err = run("targets", "a100")
    assert status == 1
    assert "unknown target 'a100'" in err


@pytest.mark.once
def test_the_device_here_is_described(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, _, err = run("targets", "--this")
    assert status == 1
    assert "the device here is a CPU" in err
    [kind] = targets.device_kinds("l40s")
    text = targets.text("l40s")
    monkeypatch.setattr("hloom._jax.devices.platform_of", lambda _: "cuda")
    monkeypatch.setattr(
        "hloom._jax.devices.device_facts", lambda *_: (DeviceFacts(kind, (8, 9), 142),)
    )
    monkeypatch.setattr("hloom._jax.devices.described_to_xla", lambda _: text)
    status, out, err = run("targets", "--this", "--to", tmp_path)
    assert (status, err) == (0, "")
    assert out.startswith("NVIDIA L40S is the target 'l40s' already.\n")
    assert (tmp_path / "nvidia_l40s.txtpb").read_text() == text
    found = targets.load(f"{tmp_path}/nvidia_l40s.toml")
    assert found.memory_bytes == targets.load("l40s").memory_bytes
    assert run("targets", f"{tmp_path}/nvidia_l40s.toml")[0] == 0


# hloom doctor


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("HLOOM_", "JAX_HLOOM")):
            monkeypatch.delenv(name)


def test_a_doctor_tells_that_it_is_off_and_what_it_would_do(run: Run, clean: None) -> None:
    status, out, err = run("doctor")
    assert (status, err) == (0, "")
    for line in (
        f"hloom:           {hloom.__version__} in ",
        "plugin:          JAX finds it by itself",
        "native library:  ",
        "x cpu, planned for as 'cpu'",
        "hloom is:        off: nothing sets it. JAX_HLOOM=fit python train.py switches it on",
        "with JAX_HLOOM=fit: hloom ran inline, drop-constraints, cse, free-constants, fit in",
    ):
        assert line in out
    assert out.endswith("\nAll is well.\n")


def test_a_flag_is_told_with_where_it_comes_from(run: Run, clean: None) -> None:
    with hloom.passes("fit{budget=1GiB}"):
        status, out, _ = run("doctor")
    assert status == 0
    assert "hloom is:        on: 'fit{budget=1GiB}', from jax.config" in out
    assert "now: hloom ran " in out


@pytest.mark.once
def test_what_is_wrong_has_a_remedy(run: Run, clean: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JAX_HLOM", "HLOOM_LOGG", "HLOOM"):
        monkeypatch.setenv(name, "fit")
    monkeypatch.setenv("HLOOM_LOG", "off")
    monkeypatch.setattr("hloom.runtime.library.find_library", lambda: None)
    from hloom.runtime.library import load_library

    load_library.cache_clear()
    try:
        status, out, _ = run("doctor")
    finally:
        load_library.cache_clear()
    assert status == 1
    assert "! hloom was installed without its native library" in out
    assert out.count("Did you mean 'JAX_HLOOM'?") == 2
    assert "HLOOM_LOGG=fit\n                 ! There is no such variable. Did you mean" in out
    assert "variables:       HLOOM_LOG=off\n" in out
    assert out.endswith("4 things to mend: the lines that begin with '!'.\n")


@pytest.mark.once
def test_without_a_device_it_stops_there(clean: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise RuntimeError("no platform")

    monkeypatch.setattr("jax.local_devices", refuse)
    *_, last = doctor.findings()
    assert (last.what, last.remedy[:17]) == ("devices", "JAX_PLATFORMS=cpu")
