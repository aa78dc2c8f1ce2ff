"""`hloom fits`, `hloom targets` and `hloom doctor`."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import jax
import pytest
from support.commands import Command

import hloom
from hloom import targets
from hloom._jax.devices import DeviceFacts
from hloom.log import terminal
from hloom.targets import deviceless
from hloom_tools import doctor
from hloom_tools.estimates.sizes import LargestSize, SizedStep
from hloom_tools.estimates.sizes_tables import Fits, SizesTable

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

def exits(rows):
    raise SystemExit("no data")

def nothing(rows):
    pass
"""


@pytest.fixture
def run(command: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "path", list(sys.path))
    return command


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "sized_train.py"
    file.write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    return file


def test_the_largest_size_for_each_target(run: Command, train: Path, tmp_path: Path) -> None:
    out_file = tmp_path / "fits.json"
    words = ("--target", "h100_sxm,v5e", "--most", 96, "--multiple", 32, "--json", out_file)
    status, out, err = run("fits", "sized_train.py:sized", *words)
    assert (status, err) == (0, "")
    first, head, h100, v5e, *rest = out.splitlines()
    assert first == "the largest size that fits a device, predicted; nothing is compiled"
    assert head.split()[0] == "target"
    assert h100.split()[:4] == ["h100_sxm", "59.3", "GiB", "96"]
    assert v5e.split()[0] == "v5e"
    assert rest == [
        "A step may take 75 % of a GPU, what JAX takes by default:",
        "XLA_PYTHON_CLIENT_MEM_FRACTION sets another share, for JAX as for hloom.",
        "+ h100_sxm, v5e: larger sizes were not looked for.",
        f"wrote {out_file}",
    ]
    assert all(len(line) <= 80 for line in (first, head, h100, v5e))
    written = json.loads(out_file.read_text())
    assert [row["as_it_is"]["size"] for row in written["rows"]] == [96, 96]


def test_a_function_may_give_a_lowered(run: Command, train: Path) -> None:
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
        ("no_such_module:f", "no_such_module cannot be imported (ModuleNotFoundError: No module"),
        ("broken.py:f", "(ZeroDivisionError: division by zero) at broken.py:2. It is imported"),
        ("syntax.py:f", "(SyntaxError: '(' was never closed (syntax.py, line 1)).\n"),
        ("sized_train.py:even", "(ValueError: rows must be even) at sized_train.py:19. Sizes are"),
        ("sized_train.py:exits", "traced with size 1 (SystemExit: no data) at sized_train.py:"),
        ("sized_train.py:TRAIN_STEP", "has no function 'TRAIN_STEP'."),
        ("sized_train.py:nothing", "gives a jitted step and its arguments, or a Lowered; got None"),
        ("sized_train.py:loss", "cannot be called with a size alone: missing a required argument"),
        ("sized_train.py:jax", "sized_train.py:jax is no function of a size: it is a module."),
        ("./sized_train:f", "and './sized_train' no .py."),
    ],
)
def test_mistakes_are_told_in_a_line(run: Command, train: Path, program: str, said: str) -> None:
    Path("broken.py").write_text("x = 1\ny = x / 0\n")
    Path("syntax.py").write_text("x = (\n")
    status, out, err = run("fits", program, "--target", "h100_sxm", "--most", 4)
    assert (status, out) == (1, "")
    assert err.startswith("hloom fits: error: ")
    assert said in err
    assert "Traceback" not in err


def test_a_multiple_helps_where_a_size_is_impossible(run: Command, train: Path) -> None:
    words = ("--target", "h100_sxm", "--most", 4, "--multiple", 2)
    assert run("fits", "sized_train.py:even", *words)[0] == 0


@pytest.mark.once
@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("h100_sxn", "unknown target 'h100_sxn'. Did you mean"),
        ("h100", "unknown target 'h100'. Did you mean 'h100_pcie' or 'h100_sxm'?"),
        ("", "no target is named. Targets: a100_sxm_40, "),
        ("./", "./: it is a folder: name the file NAME.toml in it"),
    ],
)
def test_an_unknown_target_is_told(run: Command, train: Path, target: str, said: str) -> None:
    status, out, err = run("fits", "sized_train.py:sized", "--target", target)
    assert (status, out) == (1, "")
    assert said in err
    assert err.startswith(("hloom: error: argument --target: ", "hloom fits: error: --target: no"))


@pytest.mark.once
def test_a_program_reads_none_of_the_words_of_hloom(run: Command, train: Path) -> None:
    train.write_text(f"import argparse\nargparse.ArgumentParser().parse_args()\n{TRAIN}")
    words = sys.argv
    status, _, err = run("fits", "sized_train.py:lowered", "--target", "h100_sxm", "--most", 4)
    assert (status, err) == (0, "")
    assert sys.argv is words


@pytest.mark.once
def test_a_narrow_terminal_loses_nothing_of_a_table(
    run: Command, train: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    status, out, err = run("fits", "sized_train.py:lowered", "--target", "h100_sxm", "--most", 4)
    assert (status, err) == (0, "")
    assert "59.3 GiB" in out
    assert "…" not in out + run("targets")[1]


@pytest.mark.once
def test_a_file_that_cannot_be_written_is_told_behind_the_table(run: Command, train: Path) -> None:
    words = ("--target", "h100_sxm", "--most", 4, "--json", "none/fits.json")
    status, out, err = run("fits", "sized_train.py:lowered", *words)
    assert status == 1
    assert "h100_sxm" in out
    assert err == (
        "hloom fits: error: none/fits.json cannot be written: No such file or directory.\n"
    )


@pytest.mark.once
@pytest.mark.parametrize("error", [RuntimeError("no platform"), AssertionError()])
def test_without_a_device_nothing_is_blamed_on_the_program(
    run: Command, train: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse() -> None:
        raise error

    monkeypatch.setattr("jax.local_devices", refuse)
    for words in (("fits", "sized_train.py:sized", "--target", "v5e"), ("targets", "--this")):
        status, out, err = run(*words)
        assert (status, out) == (1, "")
        assert f"hloom {words[0]}: error: JAX starts no device here: " in err


# hloom targets


@pytest.mark.once
def test_the_targets_are_listed_in_80_columns(run: Command) -> None:
    status, out, err = run("targets")
    assert (status, err) == (0, "")
    assert all(len(line) <= 80 for line in out.splitlines())
    names = {line.split()[0] for line in out.splitlines() if not line.startswith(" ")}
    assert set(targets.names()) <= names
    assert "A step may take 75 % of a GPU, what JAX takes by default:" in out


def test_a_time_below_zero_is_explained() -> None:
    step = SizedStep(8, "h100_sxm", 100, 90, 50, fit_bytes=80, added_share=-0.1)
    said = "Added time is beside the same step as it is, whether that fits or not."
    assert said in str(Fits((LargestSize("h100_sxm", 100, step, step),)))
    assert said in str(SizesTable((step,)))
    same = replace(step, added_share=-0.0004)  # shown as -0.0 %
    assert said not in str(SizesTable((same,)))


def test_a_person_sees_each_size_and_a_pipe_none(
    run: Command, train: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(terminal.board, "show", lambda _, text: shown.append(text))
    words = ("fits", "sized_train.py:sized", "--target", "v5e", "--most", 4)
    piped = run(*words)
    assert shown == []
    monkeypatch.setattr(terminal, "is_interactive", lambda: True)
    assert run(*words) == piped
    assert "hloom: v5e: size 4" in shown


@pytest.mark.once
def test_a_target_tells_where_its_figures_are_from(run: Command) -> None:
    status, out, _ = run("targets", "a100_sxm_80")
    assert status == 0
    assert out.startswith(
        "a100_sxm_80: NVIDIA A100-SXM4-80GB\n  memory 79.3 GiB, for a step 59.4 GiB"
    )
    assert "a100_sxm_80.txtpb in xla/backends/gpu/target_config/specs" in out
    assert run("targets", "cpu")[1].startswith("cpu: the host as it is")
    status, _, err = run("targets", "a100")
    assert status == 1
    assert "unknown target 'a100'" in err


@pytest.mark.once
def test_the_device_here_is_described(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, _, err = run("targets", "--this")
    assert status == 1
    assert "the device here is a CPU" in err
    [kind] = targets.device_kinds("l40s")
    text = deviceless.text("l40s")
    monkeypatch.setattr("hloom._jax.devices.platform_of", lambda _: "cuda")
    monkeypatch.setattr(
        "hloom._jax.devices.device_facts", lambda *_: (DeviceFacts(kind, (8, 9), 142),)
    )
    monkeypatch.setattr("hloom._jax.local_devices.described_to_xla", lambda _: text)
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


def test_a_doctor_tells_that_it_is_off_and_what_it_would_do(run: Command, clean: None) -> None:
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


@pytest.mark.once
@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("HLOOM_STRICT", "maybe", "HLOOM_STRICT='maybe': wanted 1 for yes"),
        ("HLOOM_LOG", "loud", "HLOOM_LOG='loud': wanted off for no lines"),
        ("HLOOM_LOG_MIN_SIZE", "big", "HLOOM_LOG_MIN_SIZE='big': wanted a size such as 1MiB."),
        ("HLOOM_DUMP_STEPS", "3", "HLOOM_DUMP_STEPS='3' chooses what is dumped, but HLOOM_DUMP_TO"),
    ],
)
def test_a_mistaken_value_is_told(
    run: Command, clean: None, monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(name, value)
    status, out, err = run("doctor")
    assert (status, err) == (1, "")
    assert f"{name}={value}\n                 ! {said}" in out
    assert out.endswith("one thing to mend: the lines that begin with '!'.\n")


@pytest.mark.once
@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("jax_hloom", "fit{budgt=1GiB}", "has no option 'budgt' (at character 5). Did you mean"),
        ("jax_hloom_min_size", "abc", "JAX_HLOOM_MIN_SIZE='abc': wanted a size such as 1MiB"),
    ],
)
def test_a_flag_that_fails_each_compile_is_told(
    run: Command, clean: None, monkeypatch: pytest.MonkeyPatch, flag: str, value: str, said: str
) -> None:
    # As from the environment, whose values JAX does not check.
    monkeypatch.setattr(type(jax.config), flag, value, raising=False)
    status, out, _ = run("doctor")
    assert status == 1
    assert said in out
    assert "! each compile fails with this until it is mended" in out


@pytest.mark.once
def test_a_choice_of_programs_is_nothing_wrong_and_nothing_is_dumped(
    run: Command, clean: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HLOOM_DUMP_TO", str(tmp_path / "dumps"))
    jax.config.update("jax_hloom_modules", "jit_train*")
    try:
        with hloom.passes("remat"):
            status, out, _ = run("doctor")
    finally:
        jax.config.update("jax_hloom_modules", None)
    assert status == 0
    assert "for programs named jit_train* alone: JAX_HLOOM_MODULES" in out
    assert not (tmp_path / "dumps").exists()


def test_a_flag_is_told_with_where_it_comes_from(run: Command, clean: None) -> None:
    with hloom.passes("fit{budget=1GiB}"):
        status, out, _ = run("doctor")
    assert status == 0
    assert "hloom is:        on: 'fit{budget=1GiB}', from jax.config" in out
    assert "now: hloom ran " in out


@pytest.mark.once
def test_what_is_wrong_has_a_remedy(
    run: Command, clean: None, monkeypatch: pytest.MonkeyPatch
) -> None:
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
