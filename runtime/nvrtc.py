"""NVRTC, NVIDIA's run-time compiler: CUDA C++ to machine code, with or without a GPU.

The library comes with JAX's CUDA plugin (the package nvidia-cuda-nvrtc) or with a CUDA toolkit.
Why by ctypes: docs/decisions/0009. Source: https://docs.nvidia.com/cuda/nvrtc/.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import os
import threading
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

_SUCCESS = 0
_COMPILATION_ERROR = 6

_MAJORS = (13, 12)
"""CUDA's major versions, the preferred one first."""

_WHEELS = {13: "nvidia.cu13", 12: "nvidia.cuda_nvrtc"}
_PLUGINS = {13: "jax_cuda13_plugin", 12: "jax_cuda12_plugin"}
_TOOLKITS = ("CUDA_HOME", "CUDA_PATH")


class CompilerMissingError(RuntimeError):
    """NVRTC was not found or cannot be loaded; the text lists the paths tried."""


class UnknownArchitectureError(RuntimeError):
    """This NVRTC does not support an architecture; the text lists those that it supports."""


class CompileError(RuntimeError):
    """A source does not compile; the text holds NVRTC's log."""


@dataclasses.dataclass(frozen=True)
class CudaSource:
    """A CUDA C++ source with the headers that it includes.

    Attributes:
      name: the file name in the compiler's messages.
      text: the source.
      headers: the headers' texts by their names in #include.
    """

    name: str
    text: str
    headers: Mapping[str, str]


class Nvrtc:
    """One loaded NVRTC.

    Attributes:
      version: major and minor, e.g. (13, 0).
    """

    def __init__(self, path: str) -> None:
        """Loads the library at `path`. Raises CompilerMissingError where that fails."""
        try:
            self._library = ctypes.CDLL(path)
            self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        except (OSError, AttributeError) as error:
            raise CompilerMissingError(f"{path} cannot be loaded as NVRTC: {error}") from error
        self._lock = threading.Lock()
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        self.version = (major.value, minor.value)

    def architectures(self) -> tuple[int, ...]:
        """The supported compute capabilities as 10 * major + minor, ascending."""
        count = ctypes.c_int()
        self._check(self._library.nvrtcGetNumSupportedArchs(ctypes.byref(count)))
        found = (ctypes.c_int * count.value)()
        self._check(self._library.nvrtcGetSupportedArchs(found))
        return tuple(sorted(found))

    def compile(self, source: CudaSource, architecture: str, options: Sequence[str] = ()) -> bytes:
        """Compiles a source to machine code (CUBIN).

        Args:
          architecture: of the device, e.g. "sm_90" or "sm_90a".
          options: further options of NVRTC.

        Raises CompileError with the compiler's log where the source does not compile, and
        UnknownArchitectureError.
        """
        with self._lock:
            return self._compile(source, architecture, options)

    def _compile(self, source: CudaSource, architecture: str, options: Sequence[str]) -> bytes:
        program = ctypes.c_void_p()
        names = [name.encode() for name in source.headers]
        texts = [text.encode() for text in source.headers.values()]
        self._check(
            self._library.nvrtcCreateProgram(
                ctypes.byref(program),
                source.text.encode(),
                source.name.encode(),
                len(names),
                _strings(texts),
                _strings(names),
            )
        )
        try:
            arguments = [f"--gpu-architecture={architecture}".encode()]
            arguments += [option.encode() for option in options]
            status = self._library.nvrtcCompileProgram(program, len(arguments), _strings(arguments))
            if status == _COMPILATION_ERROR:
                log = self._text(program, "ProgramLog").rstrip(b"\0\n").decode()
                raise CompileError(
                    f"{source.name} does not compile for {architecture} with {self}:\n{log}"
                )
            if status != _SUCCESS:
                self._check_architecture(architecture)
            self._check(status)
            return self._text(program, "CUBIN")
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def __str__(self) -> str:
        return f"NVRTC {self.version[0]}.{self.version[1]}"

    def _check_architecture(self, architecture: str) -> None:
        known = [f"sm_{each}" for each in self.architectures()]
        # NVRTC lists architectures without the suffixes "a" and "f".
        if architecture.rstrip("af") not in known:
            raise UnknownArchitectureError(
                f"{self} does not compile for {architecture}, only for {', '.join(known)}"
            )

    def _text(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        text = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{what}")(program, text))
        return text.raw

    def _check(self, status: int) -> None:
        if status != _SUCCESS:
            raise CompileError(f"NVRTC: {self._library.nvrtcGetErrorString(status).decode()}")


@functools.cache
def load() -> Nvrtc:
    """Loads the compiler, once a process.

    The one of JAX's CUDA plugin is preferred, since the machine's driver must support its CUDA
    version anyway; then any other that is installed. Raises CompilerMissingError where none loads.
    """
    tried = []
    for path in candidates():
        try:
            return Nvrtc(path)
        except CompilerMissingError as error:
            tried.append(f"  {error}")
    raise CompilerMissingError(
        "the CUDA kernels need NVRTC, NVIDIA's run-time compiler: install JAX's CUDA plugin "
        "(pip install 'hloom[cuda13]') or a CUDA toolkit\nTried:\n" + "\n".join(tried)
    )


def candidates() -> tuple[str, ...]:
    """Paths and names to load NVRTC from, the preferred first."""
    # The installed plugin decides the version.
    majors = sorted(_MAJORS, key=lambda major: (find_spec(_PLUGINS[major]) is None, -major))
    wheels = [path for major in majors for path in _wheel_libraries(major)]
    toolkits = [
        str(Path(root) / "lib64" / "libnvrtc.so")
        for variable in _TOOLKITS
        if (root := os.environ.get(variable))
    ]
    system = [f"libnvrtc.so.{major}" for major in majors]
    return (*wheels, *toolkits, *system, "libnvrtc.so")


def _wheel_libraries(major: int) -> list[str]:
    try:
        spec = find_spec(_WHEELS[major])
    except ModuleNotFoundError:
        return []  # no NVIDIA wheel is installed
    roots = [] if spec is None else list(spec.submodule_search_locations or ())
    paths = (Path(root) / "lib" / f"libnvrtc.so.{major}" for root in roots)
    return [str(path) for path in paths if path.exists()]


def _strings(texts: Sequence[bytes]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * len(texts))(*texts)
