"""The machine: a Python that has hloom, what its processes see, and what it is."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import shutil
import sys
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common.commits import git_commit, said
from benchmarks.gpu.items import ROOT

WHEELS = ROOT / "build" / "wheels"
"""Where `make wheel` puts the wheel, and the commit that it is of."""

COMMIT_FILE = "COMMIT"

_LEFT_OUT = ("HLOOM_", "JAX_", "PYTEST_", "XLA_PYTHON_CLIENT_")
"""Variables that would change what is measured, by their start. XLA_FLAGS stay, and are told."""

_SITES = ("site-packages", "dist-packages")


class MachineError(RuntimeError):
    """What is needed is not here; the text says what to do."""


def python_with_hloom(work: Path, wheel: Path | None = None) -> Path:
    """A Python that can import hloom: this one where hloom is installed, else one made for it.

    That is a virtual environment in the folder `work` that also sees all packages of this Python,
    with the wheel in it; neither pip nor a network is needed.

    Args:
      work: for what is kept between runs.
      wheel: the wheel to use, also where hloom is installed; None for that of `make wheel`.

    Raises MachineError where there is no wheel to make one from.
    """
    if wheel is None and _is_installed():
        return Path(sys.executable)
    wheel = wheel or max(WHEELS.glob("hloom-*.whl"), key=lambda f: f.stat().st_mtime, default=None)
    if wheel is None or not wheel.is_file():
        raise MachineError(
            f"hloom is not installed here, and there is no {wheel or WHEELS / 'hloom-*.whl'}: run "
            "`make wheel` where there is a network, and bring build/wheels along"
        )
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()[:16]
    made = work / f"python-{digest}"
    python = made / "bin" / "python"
    if not (made / "complete").exists():
        shutil.rmtree(made, ignore_errors=True)
        _make_environment(made, wheel)
    return python


def _is_installed() -> bool:
    try:
        return bool(importlib.metadata.version("hloom"))
    except importlib.metadata.PackageNotFoundError:
        return False


def _make_environment(folder: Path, wheel: Path) -> None:
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    [packages] = (folder / "lib").glob("python3.*/site-packages")
    try:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(packages)
    except (OSError, zipfile.BadZipFile) as error:
        raise MachineError(f"the wheel {wheel} cannot be unpacked: {error}") from None
    # This Python may be of a virtual environment itself, which `system_site_packages` would not
    # see. Plain folders: an editable install of hloom in them must not come before the wheel.
    lines = list(dict.fromkeys(each for each in sys.path if Path(each).name in _SITES))
    (packages / "hloom_gpu_benchmark.pth").write_text("\n".join([*lines, ""]), encoding="utf-8")
    (folder / "complete").touch()


def environment(work: Path, *, dry_run: bool, given: Mapping[str, str]) -> dict[str, str]:
    """The variables of an item's process, from the ones given to this process.

    The folder that its Python searches first holds a link to `benchmarks` and nothing else: in the
    repository itself the folder `hloom` would hide the installed package.
    """
    path = work / "path"
    path.mkdir(parents=True, exist_ok=True)
    link = path / "benchmarks"
    if not link.is_symlink() or link.resolve() != ROOT / "benchmarks":
        link.unlink(missing_ok=True)
        link.symlink_to(ROOT / "benchmarks", target_is_directory=True)
    kept = {name: value for name, value in given.items() if not name.startswith(_LEFT_OUT)}
    kept.pop("PYTHONSAFEPATH", None)
    theirs = [each for each in given.get("PYTHONPATH", "").split(os.pathsep) if each]
    outside = [each for each in theirs if Path(each).resolve() != ROOT]
    return kept | {
        # The CPU beside the GPU: callbacks of the host need it.
        "JAX_PLATFORMS": "cpu" if dry_run else "cuda,cpu",
        "JAX_COMPILATION_CACHE_DIR": str(work / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "HLOOM_CACHE_DIR": str(work / "kernels"),
        "PYTHONPATH": os.pathsep.join([str(path), *outside]),
        "PYTHONUNBUFFERED": "1",
        # So that the allocator's figures are what programs take.
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }


def commit(*, of_wheel: bool = False) -> str | None:
    """What of hloom this is: git's commit, "+" behind it where files differ; None if not known.

    Where the repository came without git, or hloom comes `of_wheel`, it is the commit that
    `make wheel` wrote down.
    """
    if of_wheel and (written := _written_commit()):
        return written
    return git_commit(ROOT) or _written_commit()


def _written_commit() -> str | None:
    try:
        return (WHEELS / COMMIT_FILE).read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def facts() -> dict[str, Any]:
    """What this machine says of itself without JAX."""
    smi = said(
        "nvidia-smi",
        "--query-gpu=name,driver_version,memory.total,compute_cap",
        "--format=csv,noheader",
    )
    return {
        "nvidia_smi": smi.splitlines() if smi else None,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "libc": " ".join(platform.libc_ver()),
        "xla_flags": os.environ.get("XLA_FLAGS"),
    }
