"""hloom-opt: what it says of its arguments, and how it behaves as a program."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.answers import answers
from support.opt_runs import ADD, EMPTY, OPT_MARKS, Run, fresh, write

from hloom.passes.framework import registry
from hloom_tools import opt
from hloom_tools.opt import command

pytestmark = [*OPT_MARKS, pytest.mark.wheel]

# What is wrong on the command line

WRONG_ARGUMENTS = answers("""
no.mlir → no.mlir: error: cannot read: No such file or directory
folder → folder: error: cannot read: Is a directory
a.mlir b.mlir → hloom-opt: error: one input only, got 'a.mlir' and 'b.mlir'. `hloom-opt --help`
  lists the options.
a.mlir --print-ir-aftr → hloom-opt: error: unknown option '--print-ir-aftr'. Did you mean
  '--print-ir-after'? `hloom-opt --help` lists the options.
a.mlir -p → hloom-opt: error: argument -p/--passes: expected one argument. `hloom-opt --help` lists
  the options.
a.mlir -p complain,explod → hloom-opt: error: -p='complain,explod': unknown pass 'explod' (at
  character 10). Did you mean 'explode'?
a.mlir -p complain{fial=on} → hloom-opt: error: -p='complain{fial=on}': pass 'complain' has no
  option 'fial' (at character 10). Did you mean 'fail'?
a.mlir --target h100 → hloom-opt: error: --target: unknown target 'h100'. Did you mean 'h100_pcie'
  or 'h100_sxm'?
a.mlir --target ./no.txtpb → hloom-opt: error: --target: no.txtpb: No such file or directory
a.mlir -p explode --print-ir-after=explod → hloom-opt: error: --print-ir-after=explod: 'explod' is
  no pass in -p 'explode'. Did you mean 'explode'? It runs: explode.
a.mlir --print-ir-before=explode → hloom-opt: error: --print-ir-before=explode: 'explode' does not
  run in -p 'off'. It runs no passes.
a.mlir -o no/out.mlir → hloom-opt: error: -o no/out.mlir: cannot write: No such file or directory
split.mlir --split-input-file --emit-bytecode → hloom-opt: error: --emit-bytecode writes one
  module; --split-input-file found several.
""")


def test_a_place_that_cannot_be_written_to_is_told_before_the_work(run: Run) -> None:
    for place in ("no/out.mlir", "."):
        status, _, err = run(write(ADD), "-p", "cse", "--print-ir-before-all", "-o", place)
        assert status == 1
        assert err.startswith(f"hloom-opt: error: -o {place}: cannot write: ")
        assert "IR Dump" not in err


@pytest.mark.parametrize(("arguments", "said"), WRONG_ARGUMENTS)
def test_wrong_arguments(run: Run, arguments: str, said: str) -> None:
    Path("folder").mkdir()
    write(ADD)
    write(EMPTY + "// -----\n" + EMPTY, "split.mlir")
    names = ", ".join(cls.name for cls in registry.all_passes())
    assert run(*arguments.split()) == (1, b"", said.replace("%s", names) + "\n")


def test_bytecode_is_not_written_to_a_terminal(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    said = (
        "hloom-opt: error: --emit-bytecode does not write to a terminal; give -o FILE or a pipe.\n"
    )
    assert run(write(ADD), "--emit-bytecode") == (1, b"", said)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_goes_away_is_no_news(unbuffered: str) -> None:
    big = "".join(EMPTY.replace("@main", f"@f{i}") for i in range(20_000))
    program = [sys.executable, "-m", "hloom_tools.opt", write(big)]
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    pipe = subprocess.PIPE
    with subprocess.Popen(program, stdout=pipe, stderr=pipe, env=environment) as process:
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1


def test_a_mistake_of_ours_has_no_traceback_unless_asked_for(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("what")

    monkeypatch.setattr(command, "_prepare", fail)
    said = "hloom-opt: error: internal error: KeyError: 'what'. --traceback shows where.\n"
    assert run(write(ADD)) == (1, b"", said)
    with pytest.raises(KeyError):
        opt.main([write(ADD), "--traceback"])


def test_a_failing_pass_has_a_traceback_only_where_asked_for(run: Run) -> None:
    _, _, err = run(write(EMPTY), "-p", "explode", "--traceback")
    assert "Traceback (most recent call last):" in err
    assert 'raise ValueError("no luck today")' in err
    assert err.endswith("failed in apply: ValueError: no luck today\n")


def test_no_backend_is_started_and_the_flag_does_not_matter() -> None:
    done = fresh(stdin=ADD.encode(), JAX_PLATFORMS="no-such-platform", JAX_HLOOM="no-such-pass")
    assert (done.returncode, done.stdout, done.stderr) == (0, ADD.encode(), b"")


def test_the_console_script_is_this_program() -> None:
    script = Path(sys.executable).parent / "hloom-opt"
    done = subprocess.run([script, write(ADD)], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, ADD.encode(), b"")


def test_an_interrupt_ends_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(io.BytesIO):
        def read(self, *_: object) -> bytes:
            raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(Interrupted()))
    assert run("-") == (130, b"", "")
