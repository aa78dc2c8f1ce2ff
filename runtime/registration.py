"""Registers kernels with XLA: on demand, once, in the order that XLA needs, and checked."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import jax
import jax.ffi

from .kernels import PLATFORMS, Kernel, StateType, kernel
from .library import Library, RuntimeLibraryError, load_library

logger = logging.getLogger("hloom.runtime")

TRACE_VARIABLE = "HLOOM_TRACE"
"""The environment variable with the file for a Chrome trace of the kernels' calls."""

_lock = threading.RLock()
_registered: set[tuple[str, str]] = set()
_types: set[tuple[str, str]] = set()
_is_prepared = False


class RegistrationError(RuntimeError):
    """XLA refused a kernel; the text names it and both sides' versions."""


Known = Callable[[str], Collection[str] | None]
"""Returns the targets that XLA has for a platform; None where they cannot be listed."""


def register(targets: Iterable[str], platform: str, known: Known = lambda _: None) -> None:
    """Registers those of `targets` that are not registered yet on `platform` ("cpu" or "cuda").

    Later compiles in this process can then name these targets, which is checked with `known`.
    Thread-safe; a registered target costs a set lookup. Raises
    RuntimeLibraryError where the native library is missing, RegistrationError where XLA cannot
    take the kernels, KeyError for a target that hloom lacks.
    """
    platform = platform.lower()
    with _lock:
        missing = [
            kernel(target, platform)
            for target in dict.fromkeys(targets)
            if (target, platform) not in _registered
        ]
        if not missing:
            return
        library = load_library()
        _prepare(library)
        for each in missing:
            _register_one(each, library)
        there = known(platform)
        lost = [] if there is None else [each for each in missing if each.target not in there]
        if lost:
            raise RegistrationError(
                f"XLA took {', '.join(each.target for each in lost)} for "
                f"{PLATFORMS[platform]} and does not have it ({_versions(library)})"
            )
        _registered.update((each.target, platform) for each in missing)
        logger.info(
            "registered for %s: %s (from %s)",
            platform,
            ", ".join(each.target for each in missing),
            library.path,
        )


def registered(platform: str) -> frozenset[str]:
    """The targets that this process has registered on a platform so far."""
    with _lock:
        return frozenset(target for target, where in _registered if where == platform.lower())


def _prepare(library: Library) -> None:
    """Prepares the first registration in a process."""
    global _is_prepared
    if _is_prepared:
        return
    _check_version(library)
    # XLA's CPU backend fails to start after another library has registered a state type.
    jax.devices()
    if file := os.environ.get(TRACE_VARIABLE):
        reason = library.start_trace(file)
        if reason is None:
            logger.info("%s: calls are recorded in %s", TRACE_VARIABLE, file)
        else:
            logger.warning("%s=%s: %s; nothing is recorded", TRACE_VARIABLE, file, reason)
    _is_prepared = True


def _register_one(new: Kernel, library: Library) -> None:
    platform = PLATFORMS[new.platform]
    try:
        if new.state is not None:
            _register_state(new.state, new.platform, library)
        jax.ffi.register_ffi_target(new.target, dict(library.capsules(new.stages)), platform)
    except RuntimeLibraryError:
        raise
    except Exception as error:
        raise RegistrationError(
            f"XLA did not take {new.target} for {platform}: {error} ({_versions(library)})"
        ) from error


def _register_state(state: StateType, platform: str, library: Library) -> None:
    """Registers a state type, which XLA needs before the first target that uses it."""
    if (state.name, platform) in _types:
        return
    found = library.capsules({"type_id": state.type_id, "type_info": state.type_info})
    jax.ffi.register_ffi_type(
        state.name,
        {"type_id": found["type_id"], "type_info": found["type_info"]},
        PLATFORMS[platform],
    )
    _types.add((state.name, platform))


def _check_version(library: Library) -> None:
    """Raises RegistrationError where this jaxlib would reject the library.

    On CUDA XLA rejects silently: the registration passes, and the compile then finds no such
    target. So the versions are compared first, with the one that the installed jaxlib's headers
    state.
    """
    theirs = _installed_ffi_version()
    if theirs is not None and (theirs[0] != library.ffi_version[0] or theirs < library.ffi_version):
        raise RegistrationError(
            f"this jaxlib is too old, or too new, for hloom's native library "
            f"({_versions(library)}). Reinstall hloom from its source, so that it is built "
            f"against the headers that it names: "
            f"pip install --force-reinstall --no-deps --no-cache-dir PATH"
        )


def _installed_ffi_version() -> tuple[int, int] | None:
    """The FFI version of the installed jaxlib; None where it has no headers."""
    header = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    if not header.is_file():
        return None
    text = header.read_text(encoding="utf-8")
    found = dict(re.findall(r"^#define XLA_FFI_API_(MAJOR|MINOR) (\d+)$", text, re.MULTILINE))
    return (int(found["MAJOR"]), int(found["MINOR"])) if len(found) == 2 else None


def _versions(library: Library) -> str:
    theirs = _installed_ffi_version()
    return (
        f"jax {jax.__version__} with XLA FFI "
        f"{'unknown' if theirs is None else '.'.join(map(str, theirs))}, "
        f"{library.path} built against {'.'.join(map(str, library.ffi_version))}"
    )
