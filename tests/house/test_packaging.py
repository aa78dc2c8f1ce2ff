"""The wheel holds the whole package under its import names, and works from there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from importlib.metadata import entry_points
from pathlib import Path

import jax.ffi
import pytest
from support import ROOT, RunPython, often
from support.devices.native_code import compiler

import hloom
from hloom import runtime

pytestmark = pytest.mark.long

VERSION = hloom.__version__

FOLDERS = {
    "hloom": ROOT / "hloom",
    "hloom_steps": ROOT / "hloom_steps",
    "hloom_tools": ROOT / "hloom_tools",
    "hloom/passes": ROOT / "passes",
    "hloom/lowering": ROOT / "lowering",
    "hloom/runtime": ROOT / "runtime",
}

LIBRARY = "hloom/runtime/libhloom_runtime.so"

BUILD = """
import sys
import scikit_build_core.build as build
folder, *settings = sys.argv[1:]
build.build_wheel(folder, dict(setting.split("=", 1) for setting in settings))
"""


def build_wheel(
    folder: Path, *settings: str, **environment: str
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Builds a wheel as pip does, without its isolation; gives it and what the build printed."""
    result = subprocess.run(
        [sys.executable, "-c", BUILD, str(folder), f"build-dir={folder / 'build'}", *settings],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    [path] = folder.glob("*.whl")
    return path, result


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel with the native library, built against the headers that are installed here."""
    if not often(0, 1):
        pytest.skip("`make wheel` builds one, and .ci/test-wheel runs tests of it")
    if compiler() is None or shutil.which("cmake") is None:
        pytest.skip("no C++ compiler, or no CMake, on this machine")
    theirs = runtime.registration._installed_ffi_version()
    assert theirs is not None
    path, result = build_wheel(
        tmp_path_factory.mktemp("wheel"),
        # The quickest that the compiler has: as one file, nothing optimized, nothing for debuggers.
        "cmake.build-type=Debug",
        "cmake.define.CMAKE_CXX_FLAGS_DEBUG=-g0",
        "cmake.define.CMAKE_UNITY_BUILD_BATCH_SIZE=0",
        f"cmake.define.HLOOM_JAXLIB_INCLUDE={jax.ffi.include_dir()}",
        f"cmake.define.HLOOM_FFI_VERSION={'.'.join(map(str, theirs))}",
    )
    assert path.name.startswith(f"hloom-{VERSION}-py3-none-linux_"), result.stdout + result.stderr
    assert "warning:" not in result.stdout + result.stderr
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def pure_wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel of a machine on which the C++ cannot be compiled."""
    path, _ = build_wheel(tmp_path_factory.mktemp("pure"), CXX="false")
    assert path.name == f"hloom-{VERSION}-py3-none-any.whl"
    return zipfile.ZipFile(path)


def expected_files() -> set[str]:
    """What is packed of the sources: all but the caches and what is only compiled."""
    left_out = {ROOT / "runtime" / "csrc", ROOT / "runtime" / "CMakeLists.txt"}
    return {
        f"{name}/{file.relative_to(folder)}"
        for name, folder in FOLDERS.items()
        for file in folder.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
        if left_out.isdisjoint({file, *file.parents})
    }


def packed_files(wheel: zipfile.ZipFile) -> set[str]:
    return {name for name in wheel.namelist() if not name.startswith(f"hloom-{VERSION}.dist-info/")}


@pytest.mark.once
def test_the_wheel_holds_every_file_under_its_import_name(wheel: zipfile.ZipFile) -> None:
    assert packed_files(wheel) == expected_files() | {LIBRARY}
    assert f"hloom-{VERSION}.dist-info/licenses/LICENSE" in wheel.namelist()


@pytest.mark.once
def test_the_sdist_holds_the_sources_and_nothing_that_was_built(tmp_path: Path) -> None:
    """The links in hloom/ become folders there: both names hold the same files."""
    script = "import sys, scikit_build_core.build as build; print(build.build_sdist(sys.argv[1]))"
    built = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    with tarfile.open(tmp_path / f"hloom-{VERSION}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    root = tmp_path / f"hloom-{VERSION}"
    packed = {file.relative_to(root) for file in root.rglob("*") if file.is_file()}
    for folder in ("passes", "lowering", "runtime"):
        inside, top = (
            {
                file.relative_to(base): file.read_bytes()
                for file in base.rglob("*")
                if file.is_file()
            }
            for base in (root / "hloom" / folder, root / folder)
        )
        assert inside == top
        assert Path("__init__.py") in inside
    assert {*map(Path, expected_files())} <= packed
    others = ("LICENSE", "README.md", "pyproject.toml", "Makefile", ".ci/test", "tests/conftest.py")
    assert {*map(Path, others), Path("hloom/runtime/csrc/exports.map")} <= packed
    assert not [file for file in packed if file.suffix in (".so", ".o", ".pyc", ".whl", ".stamp")]
    assert not {"build", "dist", ".git"} & {file.parts[0] for file in packed}


@pytest.mark.once
def test_the_pure_wheel_lacks_the_library_alone(pure_wheel: zipfile.ZipFile) -> None:
    assert packed_files(pure_wheel) == expected_files()


@pytest.mark.once
def test_an_index_can_show_the_wheel(pure_wheel: zipfile.ZipFile) -> None:
    """Its long description is README without what leads nowhere away from a checkout."""
    metadata = message_from_bytes(pure_wheel.read(f"hloom-{VERSION}.dist-info/METADATA"))
    assert (metadata["Version"], metadata["License-Expression"]) == (VERSION, "Apache-2.0")
    assert metadata["Description-Content-Type"] == "text/markdown"
    text = metadata.get_payload()
    assert isinstance(text, str)
    assert text.startswith("# hloom\n")
    assert re.findall(r"^## .*", text, re.M) == re.findall(
        r"^## .*", (ROOT / "README.md").read_text(encoding="utf-8"), re.M
    )
    leads = r"""\]\(([^)]*)\)|(?:src|href|srcset)=["']([^"']*)"""
    found = [target for match in re.finditer(leads, text) for target in match.groups() if target]
    assert [target for target in found if not target.startswith("https://")] == []


FROM_WHEEL = """
import sys
# An editable install is found by an importer of its own, ahead of every path.
sys.meta_path[:] = [f for f in sys.meta_path if "ScikitBuild" not in type(f).__name__]
sys.path.insert(0, {folder!r})
import hloom, hloom.passes.framework.pipeline, hloom.lowering.lower, hloom_steps.split
import hloom_tools.opt, hloom_tools.cli
from hloom import runtime
for module in (hloom, hloom.passes, hloom.lowering, runtime, hloom_steps, hloom_tools):
    assert module.__file__.startswith({folder!r}), module.__file__
print(hloom.passes.framework.pipeline.Pipeline.parse("default"))
"""


@pytest.mark.once
def test_the_wheel_works(wheel: zipfile.ZipFile, run_python: RunPython, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    script = (
        FROM_WHEEL.format(folder=str(tmp_path))
        + """
runtime.register(runtime.targets("cpu"), "cpu")
print(runtime.load_library().path)
"""
    )
    assert run_python(script).stdout == f"fit\n{tmp_path / LIBRARY}\n"


IN_THE_TREE = """
import sys
# As with a plain install: no importer stands ahead of the folder in which Python was started.
sys.meta_path[:] = [f for f in sys.meta_path if "ScikitBuild" not in type(f).__name__]
import jax, jax.numpy as jnp
print(jax.jit(jax.grad(lambda x: jnp.sin(jnp.sin(x))))(0.0))
import hloom.lowering.lower, hloom_tools.opt, hloom_tools.cli
from hloom import runtime
print([record.spec for record in hloom.records()][-1:])
print(*(module.__file__ for module in (hloom, hloom.passes, hloom.lowering, runtime)))
print(runtime.load_library().path.is_file())
"""


def test_the_tree_is_importable_as_it_is(run_python: RunPython) -> None:
    """Python started in a checkout's root finds the folder hloom/ ahead of an installed hloom."""
    result = run_python(IN_THE_TREE, cwd=ROOT, JAX_HLOOM="remat", JAX_HLOOM_MIN_SIZE="0")
    assert result.stderr == ""
    gradient, specs, files, has_library = result.stdout.splitlines()
    assert (gradient, specs) == ("1.0", "['remat']")
    folders = ["hloom", "hloom/passes", "hloom/lowering", "hloom/runtime"]
    assert files.split() == [str(ROOT / folder / "__init__.py") for folder in folders]
    assert has_library == str(compiler() is not None)


@pytest.mark.once
def test_the_pure_wheel_works_until_a_kernel_is_used(
    pure_wheel: zipfile.ZipFile, run_python: RunPython, tmp_path: Path
) -> None:
    pure_wheel.extractall(tmp_path)
    script = (
        FROM_WHEEL.format(folder=str(tmp_path))
        + """
import jax, jax.numpy as jnp
jax.config.update("jax_hloom_min_size", "0")
with hloom.passes("remat"):
    print(jax.jit(jax.grad(lambda x: jnp.sin(jnp.sin(x))))(0.0))
try:
    runtime.register(["hloom.barrier.v1"], "cpu")
except runtime.RuntimeLibraryError as error:
    print(error)
"""
    )
    first, second, third = run_python(script).stdout.splitlines()
    assert (first, second) == ("fit", "1.0")
    assert "installed without its native library" in third
    assert "pip install" in third


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler on this machine")
def test_hloom_is_installed_with_its_library() -> None:
    """An install that silently fell back to Python alone would skip what the kernels do."""
    assert runtime.load_library().ffi_version == (0, 3)


def configure(folder: Path, *definitions: str) -> subprocess.CompletedProcess[str]:
    if compiler() is None or shutil.which("cmake") is None:
        pytest.skip("no C++ compiler, or no CMake, on this machine")
    return subprocess.run(
        ["cmake", "-S", str(ROOT / "runtime"), "-B", str(folder), *definitions],
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.once
def test_other_headers_are_refused(tmp_path: Path) -> None:
    header = tmp_path / "include/xla/ffi/api/c_api.h"
    header.parent.mkdir(parents=True)
    header.write_text("#define XLA_FFI_API_MAJOR 0\n#define XLA_FFI_API_MINOR 77\n")
    include = f"-DHLOOM_JAXLIB_INCLUDE={tmp_path / 'include'}"
    result = configure(tmp_path / "build", include)
    assert result.returncode != 0
    message = " ".join(result.stderr.split())
    assert "has XLA FFI 0.77, and hloom's runtime is built against 0.3 (jaxlib 0.10.2)" in message


@pytest.mark.once
def test_a_folder_without_headers_is_refused(tmp_path: Path) -> None:
    result = configure(tmp_path / "build", f"-DHLOOM_JAXLIB_INCLUDE={tmp_path}")
    assert result.returncode != 0
    message = " ".join(result.stderr.split())
    assert "HLOOM_JAXLIB_INCLUDE must be the include folder of jaxlib 0.10.2" in message


def test_jax_and_the_shell_find_hloom() -> None:
    [plugin] = [e for e in entry_points(group="jax_plugins") if e.name == "hloom"]
    assert plugin.value == "hloom.plugin"
    scripts = {e.name: e.value for e in entry_points(group="console_scripts")}
    assert scripts["hloom"] == "hloom_tools.cli:main"
    assert scripts["hloom-opt"] == "hloom_tools.opt:main"
