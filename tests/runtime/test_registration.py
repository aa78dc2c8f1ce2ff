"""The native library and its registration: late, once, checked, and clear where it fails."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support import RunPython

from hloom import runtime
from hloom.runtime import kernels, library, registration

pytestmark = pytest.mark.wheel


def test_the_table_and_the_library_agree() -> None:
    loaded = runtime.load_library()
    listed = subprocess.run(
        ["nm", "--dynamic", "--defined-only", str(loaded.path)],
        check=True,
        capture_output=True,
        text=True,
    )
    defined = {line.split()[-1] for line in listed.stdout.splitlines()}
    in_table = {symbol for kernel in runtime.KERNELS for symbol in kernel.stages.values()}
    for kernel in runtime.KERNELS:
        if kernel.state is not None:
            in_table |= {kernel.state.type_id, kernel.state.type_info}
    other = {"hloom_ffi_version_major", "hloom_ffi_version_minor", "hloom_start_trace"}
    assert defined == in_table | other


def test_the_library_needs_no_cuda() -> None:
    needed = subprocess.run(
        ["ldd", str(runtime.load_library().path)], check=True, capture_output=True, text=True
    ).stdout
    assert "libc.so" in needed
    assert "cuda" not in needed.lower()
    assert "not found" not in needed


def test_targets_are_versioned_and_unique() -> None:
    keys = [(kernel.target, kernel.platform) for kernel in runtime.KERNELS]
    assert len(set(keys)) == len(keys)
    assert all(target.startswith("hloom.") and target.endswith(".v1") for target, _ in keys)
    assert {platform for _, platform in keys} == set(kernels.PLATFORMS)


def test_every_kernel_registers(run_python: RunPython) -> None:
    script = """
import logging, sys
logging.basicConfig(level=logging.INFO, format="%(name)s %(levelname)s %(message)s")
from hloom import runtime
for platform in ("cpu", "cuda"):
    assert runtime.registered(platform) == frozenset()
    runtime.register(runtime.targets(platform), platform)
    runtime.register(sorted(runtime.targets(platform)), platform)
    assert runtime.registered(platform) == runtime.targets(platform)
"""
    log = run_python(script).stderr
    lines = [line for line in log.splitlines() if line.startswith("hloom.runtime INFO registered")]
    assert len(lines) == 2
    assert "registered for cpu: " in lines[0]
    assert "hloom.barrier.v1" in lines[0]
    assert "registered for cuda: " in lines[1]


def test_importing_loads_nothing(run_python: RunPython) -> None:
    script = """
import hloom.runtime, pathlib
assert "libhloom" not in pathlib.Path("/proc/self/maps").read_text()
hloom.runtime.load_library()
assert "libhloom" in pathlib.Path("/proc/self/maps").read_text()
"""
    run_python(script)


def test_threads_register_once(run_python: RunPython) -> None:
    script = """
import threading, jax.ffi
from hloom import runtime
calls = []
register = jax.ffi.register_ffi_target
jax.ffi.register_ffi_target = lambda name, *rest, **more: (
    calls.append(name), register(name, *rest, **more))
threads = [
    threading.Thread(target=runtime.register, args=(runtime.targets("cpu"), "cpu"))
    for _ in range(8)
]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert sorted(calls) == sorted(runtime.targets("cpu")), calls
"""
    run_python(script)


def test_an_unknown_target_is_an_error() -> None:
    with pytest.raises(KeyError, match=r"no kernel 'hloom\.barrier\.v9' for platform 'cpu'"):
        runtime.register(["hloom.barrier.v9"], "cpu")
    with pytest.raises(KeyError, match="for platform 'rocm'"):
        runtime.register(["hloom.barrier.v1"], "rocm")


def test_a_refused_registration_names_both_versions(run_python: RunPython) -> None:
    script = """
import jax, jax.ffi
from hloom import runtime
def refuse(*arguments, **more):
    raise ValueError("INVALID_ARGUMENT: version mismatch")
jax.ffi.register_ffi_target = refuse
try:
    runtime.register(["hloom.tie.v1"], "cpu")
except runtime.RegistrationError as error:
    print(error)
assert runtime.registered("cpu") == frozenset()
"""
    text = run_python(script).stdout
    assert "XLA did not take hloom.tie.v1 for cpu: INVALID_ARGUMENT: version mismatch" in text
    assert "with XLA FFI 0." in text
    assert "built against 0.3" in text


def test_a_registration_that_got_lost_is_an_error(run_python: RunPython) -> None:
    script = """
import jax.ffi
from hloom import runtime
from hloom._jax.devices import ffi_targets
register = jax.ffi.register_ffi_target
jax.ffi.register_ffi_target = lambda name, *rest: name != "hloom.tie.v1" and register(name, *rest)
try:
    runtime.register(["hloom.tie.v1", "hloom.token.v1"], "cpu", known=ffi_targets)
except runtime.RegistrationError as error:
    print(error)
jax.ffi.register_ffi_target = register
runtime.register(["hloom.tie.v1", "hloom.token.v1"], "cpu", known=ffi_targets)
"""
    text = run_python(script).stdout
    assert text.startswith("XLA took hloom.tie.v1 for cpu and does not have it (jax ")


@pytest.mark.parametrize(("minor", "is_taken"), [(0, True), (99, False)])
def test_a_library_newer_than_jaxlib_is_refused(
    monkeypatch: pytest.MonkeyPatch, minor: int, is_taken: bool
) -> None:
    loaded = runtime.load_library()
    monkeypatch.setattr(library.Library, "ffi_version", property(lambda self: (0, minor)))
    if is_taken:
        registration._check_version(loaded)
    else:
        with pytest.raises(runtime.RegistrationError, match="built against 0.99.*Reinstall"):
            registration._check_version(loaded)


def test_the_version_is_that_of_the_installed_headers() -> None:
    installed = registration._installed_ffi_version()
    assert installed >= (0, 3)


def test_a_missing_library_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, fresh_loader: Callable[[], library.Library]
) -> None:
    monkeypatch.setattr(library, "FILE_NAME", "libnowhere.so")
    assert runtime.find_library() is None
    with pytest.raises(runtime.RuntimeLibraryError, match=r"C\+\+17 compiler.*apt install g\+\+"):
        fresh_loader()


def test_a_broken_library_says_so(tmp_path: Path) -> None:
    path = tmp_path / "libhloom_runtime.so"
    path.write_bytes(b"not a library")
    with pytest.raises(runtime.RuntimeLibraryError, match=f"{path} does not load: .*Reinstall"):
        library.Library(path)


def test_a_symbol_that_is_not_there_says_so() -> None:
    loaded = runtime.load_library()
    with pytest.raises(runtime.RuntimeLibraryError, match="lacks hloom_nothing"):
        loaded.capsules({"execute": "hloom_nothing"})


@pytest.fixture
def fresh_loader() -> Callable[[], library.Library]:
    return library.load_library.__wrapped__
