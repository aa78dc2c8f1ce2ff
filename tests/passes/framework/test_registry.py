"""The registry of passes: which modules it imports, and the passes that other distributions add."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
from support import RunPython

from hloom.passes.framework import registry

GOOD = """
import dataclasses
from hloom.passes.framework.base import Pass

@dataclasses.dataclass(frozen=True)
class NoPlan:
    empty: bool = True
    def summary(self): return "nothing"
    def to_json(self): return {}

@dataclasses.dataclass(frozen=True)
class Idle(Pass):
    name = "idle"
    summary = "do nothing"
    example = "idle"
    def plan(self, module, target): return NoPlan()
    def apply(self, plan): raise AssertionError

class Renamed(Idle):
    name = "other"
"""


def install(folder: Path, name: str, entry_points: str) -> None:
    """Puts a distribution on a path, as pip leaves it; its one module has the name with `_`."""
    (folder / f"{name.replace('-', '_')}.py").write_text(GOOD)
    info = folder / f"{name.replace('-', '_')}-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[hloom.passes]\n{textwrap.dedent(entry_points)}\n")


def result_of(script: str, folder: Path, run_python: RunPython) -> list[str]:
    """The printed lines of a Python that has what is installed in the folder."""
    return run_python(f"import hloom\n{script}", PYTHONPATH=str(folder)).stdout.splitlines()


LOOK_UP = """
from hloom.passes.framework import registry
from hloom.passes.framework.spec import parse_spec, print_spec
def tell(spec):
    try:
        print(print_spec(parse_spec(spec, source="spec")))
    except hloom.SpecError as error:
        print(error)
"""


def test_a_spec_imports_the_passes_that_it_names(tmp_path: Path, run_python: RunPython) -> None:
    """And scipy not even with them: it takes as long as they do, and waits for the first cut."""
    script = """
import sys
from hloom.passes.framework.spec import parse_spec, print_spec
parse_spec("cse", source="spec")
print(*(m in sys.modules for m in ("hloom.passes.cse", "hloom.passes.remat", "scipy")))
parse_spec("remat", source="spec")
print(*(m in sys.modules for m in ("hloom.passes.cse", "hloom.passes.remat", "scipy")))
"""
    assert result_of(script, tmp_path, run_python) == ["True False False", "True True False"]


def test_the_names_are_those_of_the_classes() -> None:
    names = registry.names()
    assert names == tuple(cls.name for cls in registry.all_passes())
    assert list(names) == sorted(names)
    assert registry.problems() == ()


def test_a_pass_of_another_distribution_runs(tmp_path: Path, run_python: RunPython) -> None:
    install(tmp_path, "idle-passes", "idle = idle_passes:Idle")
    script = """
import sys
from hloom.passes.framework import registry
print("idle" in registry.names(), "idle_passes" in sys.modules)
import jax, jax.numpy as jnp
with hloom.passes("cse"):
    jax.jit(jnp.sin)(1.0)
print("idle_passes" in sys.modules)
with hloom.passes("idle"):
    print(jax.jit(lambda x: x + 1)(1.0))
print(hloom.records()[-1].spec, [run.name for run in hloom.records()[-1].runs])
print([cls.__name__ for cls in registry.all_passes() if cls.name == "idle"], registry.problems())
"""
    assert result_of(script, tmp_path, run_python) == [
        "True False",
        "False",
        "2.0",
        "idle ['idle']",
        "['Idle'] ()",
    ]


BROKEN = [
    ("idle_passes:Nothing", "does not load: AttributeError: module 'idle_passes' has no attribute"),
    ("absent:Idle", "does not load: ModuleNotFoundError: No module named 'absent'"),
    ("idle_passes:NoPlan", "wanted a subclass of hloom.passes.framework.base.Pass"),
    ("idle_passes:Renamed", "the class calls itself 'other'; wanted one name"),
]


@pytest.mark.once
@pytest.mark.parametrize(("value", "reason"), BROKEN)
def test_a_broken_registration_is_told_and_breaks_no_other_spec(
    tmp_path: Path, run_python: RunPython, value: str, reason: str
) -> None:
    install(tmp_path, "idle-passes", f"idle = {value}\nidle2 = idle_passes:Idle")
    script = LOOK_UP + 'tell("idle"); tell("cse"); print(*registry.problems(), sep="\\n")'
    told, other, first, second = result_of(script, tmp_path, run_python)
    assert told.startswith(f"spec='idle': pass 'idle' of idle-passes 1.2 ({value})")
    assert reason in told
    assert other == "cse"
    assert first in told
    assert second.startswith("pass 'idle2' of idle-passes 1.2 (idle_passes:Idle): the class calls")


@pytest.mark.once
def test_what_is_registered_twice_is_not_chosen_from(tmp_path: Path, run_python: RunPython) -> None:
    install(tmp_path, "idle-passes", "idle = idle_passes:Idle")
    install(tmp_path, "more-passes", "idle = more_passes:Idle")
    script = LOOK_UP + 'tell("idle"); tell("unroll"); print(*registry.problems(), sep="\\n")'
    told, other, problem = result_of(script, tmp_path, run_python)
    expected = (
        "pass 'idle' is registered more than once, by idle-passes 1.2 and more-passes 1.2: "
        "uninstall all but one"
    )
    assert told == f"spec='idle': {expected} (at character 1)."
    assert other.startswith("unroll")
    assert problem == expected


@pytest.mark.once
def test_names_that_no_spec_can_mean_are_told(tmp_path: Path, run_python: RunPython) -> None:
    entry_points = """\
        remat = idle_passes:Idle
        off = idle_passes:Idle
        Idle = idle_passes:Idle
        an{idle} = idle_passes:Idle
        idle = idle_passes:Idle"""
    install(tmp_path, "idle-passes", entry_points)
    script = LOOK_UP + 'tell("remat,idle"); print(*registry.problems(), sep="\\n")'
    told, *problems = result_of(script, tmp_path, run_python)
    assert told == "remat,idle"
    where = "of idle-passes 1.2 (idle_passes:Idle)"
    assert problems == [
        f"pass 'Idle' {where}: a name is lower-case words with '-' between them",
        f"pass 'an{{idle}}' {where}: a name is lower-case words with '-' between them",
        f"pass 'off' {where}: 'off' has a meaning of its own in specs",
        f"pass 'remat' {where}: hloom has a pass of that name; hloom's own is used",
    ]


@pytest.mark.once
def test_the_list_of_passes_ends_with_what_cannot_be_used(
    tmp_path: Path, run_python: RunPython
) -> None:
    install(tmp_path, "idle-passes", "idle = idle_passes:Idle\nbad = absent:Bad")
    script = "import sys, hloom_tools.cli\nsys.exit(hloom_tools.cli.main(['passes']))"
    done = run_python(script, PYTHONPATH=str(tmp_path))
    assert re.search(r"^idle +do nothing", done.stdout, re.MULTILINE)
    assert "remat  " in done.stdout
    [line] = done.stderr.splitlines()
    assert line.startswith("hloom: warning: pass 'bad' of idle-passes 1.2 (absent:Bad) does not")
