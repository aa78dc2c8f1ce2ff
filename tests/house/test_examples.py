"""The examples as a user runs them: no change to the program, one variable set."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT, often, xla_flags

pytestmark = pytest.mark.long

EXAMPLES = ROOT / "examples"


def trained_on(devices: int) -> dict[str, str]:
    """Where steps take most of the time: some of LLVM's optimizations make that shorter."""
    return {"XLA_FLAGS": f"{xla_flags(devices)} --xla_backend_optimization_level=1"}


def run_example(name: str, **environment: str) -> str:
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def losses(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"loss (\S+)", output)]


def temporaries_mib(output: str) -> float:
    [memory] = re.findall(r"temporary memory of a step: (\S+) MiB", output)
    return float(memory)


@pytest.mark.once
def test_stages_train() -> None:
    output = run_example("stages_train.py", XLA_FLAGS=xla_flags(4))
    first, last = losses(output)
    assert last < 0.1 * first
    assert "3:          F0 B0 F1 B1" in output
    page = (ROOT / "docs" / "stages.md").read_text(encoding="utf-8")
    plan = page.split("```text\n")[1].split("```")[0].splitlines()
    # The seconds are those of the machine, by its own rooflines.
    assert plan[0] == output.splitlines()[0]
    assert plan[-4:] == [line for line in output.splitlines() if re.match(r"\d: ", line)]


@pytest.mark.once
def test_pipeline_train() -> None:
    flags = trained_on(4)
    plain = run_example("pipeline_train.py", JAX_HLOOM="off", **flags)
    pipeline = run_example(
        "pipeline_train.py", JAX_HLOOM="pipeline{axis=stage microbatches=8}", **flags
    )
    assert len(losses(plain)) == 10
    assert losses(plain)[-1] < losses(plain)[0]
    assert losses(pipeline) == pytest.approx(losses(plain), rel=1e-4)
    assert temporaries_mib(pipeline) <= 0.4 * temporaries_mib(plain)


@pytest.mark.once
@pytest.mark.parametrize("name", ["pipeline_equinox", "pipeline_logical_axes"][: often(1, 2)])
def test_more_models_train_as_pipelines(name: str) -> None:
    """In strict mode, where a step that is no pipeline would be an error."""
    told = run_example(
        f"{name}.py",
        JAX_HLOOM="pipeline{axis=stage microbatches=4}",
        HLOOM_STRICT="1",
        XLA_FLAGS=xla_flags(4),
    )
    assert len(losses(told)) == 10
    assert losses(told)[-1] < losses(told)[0]


@pytest.mark.once
def test_the_first_command_of_the_readme() -> None:
    """It needs JAX alone, changes no loss, and prints what the page says."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    typed = r"^```console\n\$ JAX_HLOOM='(.+)' python examples/(\S+)\n((?s:.*?))^```$"
    [(spec, path, printed)] = re.findall(typed, text, re.M)
    source = (EXAMPLES / path).read_text(encoding="utf-8")
    imported = re.findall(r"^(?:import|from) (\w+)", source, re.M)
    assert set(imported) == {"pathlib", "jax", "numpy"}
    plain, told = (
        subprocess.run(
            [sys.executable, str(EXAMPLES / path)],
            env=os.environ | trained_on(1) | {"JAX_HLOOM": each},
            capture_output=True,
            text=True,
            timeout=240,
            check=True,
        )
        for each in ("off", spec)
    )
    assert len(losses(plain.stdout)) == 10
    assert losses(plain.stdout)[-1] < 0.9 * losses(plain.stdout)[0]
    assert losses(told.stdout) == pytest.approx(losses(plain.stdout), rel=1e-4)
    wanted = printed.split("…")[0].split()
    assert told.stderr.splitlines()[-1].split()[: len(wanted)] == wanted


# On the newest version tests of the demo train a model of Flax with and without hloom.
@pytest.mark.once
def test_the_first_hour(tmp_path: Path) -> None:
    """examples/first_hour.sh: examples/flax_train.py in every way that a newcomer tries."""
    lines = (EXAMPLES / "flax_train.py").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if "hloom" in line.lower()] == [
        "    JAX_HLOOM=remat python examples/flax_train.py"
    ]
    done = subprocess.run(
        ["bash", str(EXAMPLES / "first_hour.sh"), str(tmp_path)],
        env=os.environ
        | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **trained_on(1)},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    plain, fitting, smaller, report, budgets, replay, mistake, passes = re.split(
        r"\n\x1b\[1m# \d\. .*\n", done.stdout
    )[1:]
    assert len(losses(plain)) == 10
    assert losses(plain)[-1] < losses(plain)[0]
    assert losses(fitting) == losses(plain)
    assert losses(smaller) == pytest.approx(losses(plain), rel=1e-4)
    assert temporaries_mib(fitting) == temporaries_mib(plain)
    assert temporaries_mib(smaller) <= 0.6 * temporaries_mib(plain)
    assert re.search(r"jit_train_step: .*unchanged", done.stderr)
    assert "holds the budget" in report
    assert "h100_sxm" in budgets
    assert "EQUAL" in replay
    assert "hloom.SpecError: JAX_HLOOM='fit{budgt=60GiB}'" in mistake
    assert "Did you mean 'budget'?" in mistake
    assert "\nremat  " in passes


@pytest.mark.once
def test_two_programs() -> None:
    output = run_example("two_programs.py")
    found = [float(loss) for loss in re.findall(r"losses (\S+)", output)]
    assert found == sorted(found, reverse=True)
    assert "dot_general two_programs.py:" in output
    assert re.search(r"% of the products done again$", output.strip())


@pytest.mark.once
def test_the_notebook(tmp_path: Path) -> None:
    """As Jupyter runs it: a step before and after, its record, and its report."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(EXAMPLES / "hloom.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # figures are those of a run
    client = NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    with client.setup_kernel(env=os.environ | trained_on(1)):
        for number, cell in enumerate(notebook.cells):
            client.execute_cell(cell, number)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [each.text for each in outputs if each.get("name") == "stderr"]
    streams = "".join(each.text for each in outputs if each.output_type == "stream")
    first, second = re.findall(r"losses: (.*)", streams)
    assert [*map(float, second.split())] == pytest.approx([*map(float, first.split())], rel=1e-5)
    pages = [each.data.get("text/html", "") for each in outputs if "data" in each]
    texts = [each.data.get("text/plain", "") for each in outputs if "data" in each]
    assert any("fit{budget=min}" in text for text in texts)
    [line] = [text for text in texts if text.startswith("hloom: jit_train_step: ") and "%" in text]
    assert re.search(r" → \S+ MiB temporaries \(-[45]\d %\), .*\d+ operations recomputed", line)
    assert any("<td>fit{budget=60%}</td>" in page for page in pages)
    [report] = [page for page in pages if "<iframe" in page]
    assert "jit_train_step · hloom report" in report
