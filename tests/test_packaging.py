"""The wheel holds the whole package under its import names, and works from there."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from conftest import RunPython

ROOT = Path(__file__).parents[1]

FOLDERS = {
    "hloom": ROOT / "hloom",
    "hloom/passes": ROOT / "passes",
    "hloom/lowering": ROOT / "lowering",
    "hloom/runtime": ROOT / "runtime",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    script = f"import scikit_build_core.build as b; b.build_wheel({str(folder)!r})"
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True)
    [path] = folder.glob("*.whl")
    assert path.name == "hloom-0.1.0-py3-none-any.whl"
    return zipfile.ZipFile(path)


def test_the_wheel_holds_every_file_under_its_import_name(wheel: zipfile.ZipFile) -> None:
    expected = {
        f"{name}/{file.relative_to(folder)}"
        for name, folder in FOLDERS.items()
        for file in folder.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    packed = {name for name in wheel.namelist() if not name.startswith("hloom-0.1.0.dist-info/")}
    assert packed == expected
    assert "hloom-0.1.0.dist-info/licenses/LICENSE" in wheel.namelist()


def test_the_wheel_works(wheel: zipfile.ZipFile, run_python: RunPython, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    # An editable install is found by an importer of its own, ahead of every path.
    script = f"""
import sys
sys.meta_path[:] = [f for f in sys.meta_path if "ScikitBuild" not in type(f).__name__]
sys.path.insert(0, {str(tmp_path)!r})
import hloom, hloom.passes.pipeline, hloom.lowering.decompose, hloom.runtime, hloom.cli, hloom.opt
for module in (hloom, hloom.passes, hloom.lowering, hloom.runtime):
    assert module.__file__.startswith({str(tmp_path)!r}), module.__file__
print(hloom.passes.pipeline.Pipeline.parse("default"))
"""
    assert run_python(script).stdout == "remat\n"


def test_jax_and_the_shell_find_hloom() -> None:
    [plugin] = [e for e in entry_points(group="jax_plugins") if e.name == "hloom"]
    assert plugin.value == "hloom.plugin"
    scripts = {e.name: e.value for e in entry_points(group="console_scripts")}
    assert scripts["hloom"] == "hloom.cli:main"
    assert scripts["hloom-opt"] == "hloom.opt:main"
