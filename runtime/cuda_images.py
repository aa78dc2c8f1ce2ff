"""Machine code of hloom's CUDA kernels, compiled when it is needed and kept on disk.

The sources are in `cuda_kernels/`. An image is found again by everything that decides its bytes:
source, headers, architecture, options and the compiler's version.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import tempfile
from importlib import resources
from pathlib import Path

from hloom.runtime import nvrtc

_LOGGER = logging.getLogger("hloom.runtime")

OPTIONS = ("--std=c++17",)
"""What the compiler is told about every kernel."""

_DIGEST_BYTES = hashlib.sha256().digest_size


def cache_dir() -> Path:
    """Where images are kept.

    $HLOOM_CACHE_DIR, else $XDG_CACHE_HOME/hloom, else ~/.cache/hloom; a folder "kernels" in it.
    """
    if chosen := os.environ.get("HLOOM_CACHE_DIR"):
        return Path(chosen) / "kernels"
    base = os.environ.get("XDG_CACHE_HOME")
    # The XDG specification: a path that is not absolute counts as not set.
    if base and Path(base).is_absolute():
        return Path(base) / "hloom" / "kernels"
    return Path.home() / ".cache" / "hloom" / "kernels"


def source(name: str) -> nvrtc.Source:
    """The source file `cuda_kernels/<name>.cu` with every header of that folder."""
    folder = resources.files("hloom.runtime").joinpath("cuda_kernels")
    headers = {
        entry.name: entry.read_text(encoding="utf-8")
        for entry in folder.iterdir()
        if entry.name.endswith(".cuh")
    }
    text = folder.joinpath(f"{name}.cu").read_text(encoding="utf-8")
    return nvrtc.Source(f"{name}.cu", text, dict(sorted(headers.items())))


@functools.cache
def image(name: str, architecture: str) -> bytes:
    """The machine code of `cuda_kernels/<name>.cu`, from the disk where it was made before.

    Args:
      name: the source file without its ending, e.g. "barrier".
      architecture: of the device, e.g. "sm_90".

    Raises nvrtc.CompilerMissingError where there is no compiler, and
    nvrtc.UnknownArchitectureError where it is too old or too new for the device.
    """
    compiler = nvrtc.load()
    to_compile = source(name)
    file = cache_dir() / f"{key(to_compile, architecture, compiler.version)}.cubin"
    found = _read(file)
    if found is not None:
        _LOGGER.debug("kernel %s for %s: read from %s", name, architecture, file)
        return found
    made = compiler.compile(to_compile, architecture, OPTIONS)
    _LOGGER.info(
        "kernel %s for %s: compiled with %s, %d bytes", name, architecture, compiler, len(made)
    )
    _write(file, made)
    return made


def key(to_compile: nvrtc.Source, architecture: str, version: tuple[int, int]) -> str:
    """A name for an image: of the source, architecture, options and the compiler's version."""
    parts = [to_compile.name, to_compile.text, architecture, repr(OPTIONS), repr(version)]
    parts += [part for header in sorted(to_compile.headers.items()) for part in header]
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        # With their lengths, so that no two lists of parts read the same.
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()


def _read(file: Path) -> bytes | None:
    """The image in a file; None where there is none or the file is not as it was written."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    stored, found = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    return found if hashlib.sha256(found).digest() == stored else None


def _write(file: Path, made: bytes) -> None:
    """Puts an image on disk whole or not at all; a disk that refuses it costs time, no more."""
    temporary = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Beside its place, since only within one file system is a replacement atomic.
        descriptor, temporary = tempfile.mkstemp(dir=file.parent, prefix=file.stem, suffix=".tmp")
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(hashlib.sha256(made).digest() + made)
        os.replace(temporary, file)
    except OSError as error:
        _LOGGER.warning("kernel images are not kept: %s", error)
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
