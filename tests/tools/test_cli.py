"""The command line `hloom`."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest
from support import RunPython
from support.answers import answers
from support.commands import Command
from support.toy_passes import Toy

import hloom
from hloom.passes.framework import registry
from hloom.passes.framework.options import options_of

pytestmark = pytest.mark.wheel


@pytest.fixture
def run(command: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("COLUMNS", "100")
    return command


@pytest.mark.parametrize("words", [(), ("--help",)])
def test_help_teaches_the_flag_and_the_commands(run: Command, words: tuple[str, ...]) -> None:
    status, out, err = run(*words)
    assert (status, err) == (0, "")
    for line in (
        "JAX_HLOOM=fit python train.py",
        'jax.config.update("jax_hloom", "fit")',
        'with hloom.passes("fit")',
        'jax.jit(step, compiler_options={"hloom": "fit"})',
        'lowered.compile(compiler_options={"hloom": "fit"})',
        "passes",
        "demo",
        "hloom-opt",
    ):
        assert line in out


def test_version(run: Command) -> None:
    assert run("--version") == (0, f"hloom {hloom.__version__}\n", "")


@pytest.mark.parametrize("words", ["--help", ""])
def test_help_imports_neither_jax_nor_hloom(run_python: RunPython, words: str) -> None:
    script = f"""
import atexit, sys
from hloom_tools.cli import main
atexit.register(lambda: print(sorted({{"hloom", "jax", "jaxlib", "numpy"}} & sys.modules.keys())))
sys.exit(main({words.split()!r}))
"""
    assert run_python(script).stdout.splitlines()[-1] == "[]"


def test_passes_lists_every_pass_in_a_line(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    status, out, err = run("passes")
    assert (status, err) == (0, "")
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    for cls in registry.all_passes():
        assert lines[cls.name].split(maxsplit=1)[1] == cls.summary  # no blanks behind it in a pipe
    helpers = out.partition("helpers")[2]
    assert "\ncse  " in helpers
    assert "\nfit  " not in helpers


def test_passes_tells_all_about_one(run: Command) -> None:
    with registry.registered(Toy):
        status, out, err = run("passes", Toy.name)
    assert (status, err) == (0, "")
    assert out.startswith(f"{Toy.name}  {Toy.summary}")
    assert f"Example: {Toy.example}" in out
    words = " ".join(out.split())
    assert "limit a whole number, from -5 to 100 (things); default: 8 How many. ratio" in words
    assert "\ncse  " not in out


@pytest.mark.parametrize("name", registry.names())
def test_what_is_told_of_a_pass_stays_whole_at_80_columns(
    run: Command, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """No word is cut, and no column is narrower than a sentence needs."""
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = run("passes", name)
    assert max(map(len, out.splitlines())) <= 80
    words = " ".join(out.split())
    pass_class = registry.lookup(name)
    assert pass_class is not None
    for option in options_of(pass_class):
        assert f"{option.name} " in words
        assert " ".join(option.doc.split()) in words


def test_markdown_is_the_document(run: Command) -> None:
    from hloom_tools import passes_doc

    assert run("passes", "--markdown") == (0, passes_doc.markdown(), "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        *answers("""
pases → unknown command 'pases'. Did you mean 'passes'?
zzz → unknown command 'zzz'. Commands: passes, show, budgets, fits, targets, doctor, shardings,
  capture, demo, replay, bisect, report.
passes remta → unknown pass 'remta'. Did you mean 'remat'?
passes zzz → unknown pass 'zzz'. Passes: %s.
passes remat --markdown → --markdown prints every pass; leave out the name.
passes a b → unrecognized arguments: b. `hloom --help` shows how it is used.
demo --target ./no.toml → argument --target: no.toml: No such file or directory. `hloom demo
  --help` shows how it is used.
--vers → unrecognized arguments: --vers. `hloom --help` shows how it is used.
"""),
        *(
            (
                f"{command} x --target h100",
                "argument --target: unknown target 'h100'. Did you mean 'h100_pcie' or "
                f"'h100_sxm'? `hloom {command} --help` shows how it is used.",
            )
            for command in ("budgets", "shardings", "capture", "show", "fits", "replay", "bisect")
        ),
    ],
)
def test_mistakes(run: Command, words: str, said: str) -> None:
    names = ", ".join(cls.name for cls in registry.all_passes())
    assert run(*words.split()) == (1, "", f"hloom: error: {said}\n".replace("%s", names))


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A stand-in for the demo, to see what the command line does with it."""
    program = types.ModuleType("hloom_tools.demo.command")
    monkeypatch.setitem(sys.modules, "hloom_tools.demo.command", program)
    if "hloom_tools.demo" not in sys.modules:
        monkeypatch.setitem(sys.modules, "hloom_tools.demo", types.ModuleType("hloom_tools.demo"))
    return program


def test_demo_gets_its_own_arguments(run: Command, demo: types.ModuleType) -> None:
    demo.add_arguments = lambda parser: parser.add_argument("--steps", type=int)  # type: ignore[attr-defined]
    demo.run = lambda arguments: arguments.steps  # type: ignore[attr-defined]
    assert run("demo", "--steps", "7") == (7, "", "")
    status, out, _ = run("demo", "--help")
    assert status == 0
    assert "--steps STEPS" in out


@pytest.mark.parametrize("missing", ["flax", "optax", "matplotlib.pyplot"])
def test_demo_without_its_extra_says_which(
    run: Command, demo: types.ModuleType, missing: str
) -> None:
    def add_arguments(_: object) -> None:
        raise ModuleNotFoundError(f"No module named '{missing}'", name=missing)

    demo.add_arguments = add_arguments  # type: ignore[attr-defined]
    said = f"the demo needs {missing}, which is not installed: pip install 'hloom[demo]'"
    assert run("demo") == (1, "", f"hloom: error: {said}\n")


def test_help_of_the_demo_needs_no_extra(run: Command, demo: types.ModuleType) -> None:
    def add_arguments(_: object) -> None:
        raise ModuleNotFoundError("No module named 'flax'", name="flax")

    demo.add_arguments = add_arguments  # type: ignore[attr-defined]
    status, out, err = run("demo", "--help")
    assert (status, err) == (0, "")
    assert out.startswith("usage: hloom demo")
    said = "the demo needs flax, which is not installed: pip install 'hloom[demo]'."
    assert said in " ".join(out.split())


CAPTURED_FILES: list[tuple[str, bytes | None, str]] = [
    ("nothere", None, "cannot be read: No such file or directory."),
    ("binary.mlir", b"module \xc5", ": it is no text in UTF-8: a module of StableHLO is wanted."),
    ("nul.mlir", b"module {}\0", ": it has NUL bytes, and is no text: a module"),
    ("code.mlir", b"ML\xefR\x01", ": MLIR bytecode: `hloom-opt "),
    ("words.mlir", b"\x1b]0;title\x07", ": not a module of StableHLO: "),
    ("fifo", b"", ": it is a FIFO: a module of StableHLO is wanted."),
    ("a.thunk_sequence.txt", b"", ": it is a FIFO"),
]


@pytest.mark.parametrize(("name", "content", "said"), CAPTURED_FILES)
def test_capture_tells_bad_files_as_other_commands_do(
    run: Command, tmp_path: Path, name: str, content: bytes | None, said: str
) -> None:
    file = tmp_path / name
    if content == b"":
        os.mkfifo(file)
    elif content is not None:
        file.write_bytes(content)
    status, out, err = run("capture", str(file))
    assert (status, out) == (1, "")
    assert err.startswith(f"hloom capture: error: {file}")
    assert said in err
    assert err.count("\n") == 1 or name == "words.mlir"
    assert not any(word in err for word in ("Errno", "codec", "\x1b", "\x07"))


def test_a_bug_in_the_demo_is_not_taken_for_a_missing_extra(
    run: Command, demo: types.ModuleType
) -> None:
    def add_arguments(_: object) -> None:
        raise ModuleNotFoundError("No module named 'typo'", name="typo")

    demo.add_arguments = add_arguments  # type: ignore[attr-defined]
    with pytest.raises(ModuleNotFoundError):
        run("demo")


@pytest.mark.parametrize("command", [["-m", "hloom"], ["hloom"]])
def test_it_starts_as_a_script_and_as_a_module(command: list[str]) -> None:
    start = [str(Path(sys.executable).parent / "hloom")] if command == ["hloom"] else None
    done = subprocess.run(
        [*(start or [sys.executable, *command]), "--version"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"hloom {hloom.__version__}\n", "")


def test_a_reader_that_goes_away_is_no_news() -> None:
    script = f"{sys.executable} -m hloom passes | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("report", "-o --out"),
        ("targets", "-o --out --to"),
        ("bisect", "-o --out --write"),
        ("demo", "-o --out"),
        ("demo", "-p --passes --spec"),
        ("capture", "-p --passes"),
        ("replay", "-p --passes"),
    ],
)
def test_one_thing_has_one_name_and_older_names_work(run: Command, name: str, options: str) -> None:
    listed = run(name, "--help").shown
    shown = [each for each in options.split() if f"  {each}" in listed or f", {each}" in listed]
    assert shown == options.split()
