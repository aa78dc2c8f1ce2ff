"""Makes the processes that run one program take the same decisions.

Each process compiles the program for itself, and all must compile the same module, or their
collectives would not match. So where a decision rests on a figure of the process's own device or
compile, all processes use the largest figure. They exchange figures through the key-value store of
`jax.distributed`.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from jax.extend.mlir import ir

TIMEOUT_S = 1200.0
"""Seconds to wait for another process's figures: as long as JAX waits for a shared executable."""

_rounds: Counter[str] = Counter()
_lock = threading.Lock()


class Store(Protocol):
    """A key-value store that the processes share."""

    def put(self, key: str, value: str) -> None:
        """Stores a value."""

    def get(self, key: str, timeout_s: float) -> str | None:
        """Waits for the value of a key and returns it; None where none was stored in time."""

    def delete(self, key: str) -> None:
        """Deletes a value."""


class AgreementError(RuntimeError):
    """Other processes did not send their figures in time; the text says which."""


class Agreement:
    """Lets the processes that compile one program agree on figures.

    With fewer than two processes nothing is exchanged, and the process's own figures count.
    """

    def __init__(
        self,
        module: ir.Module,
        processes: tuple[int, ...] = (),
        *,
        me: int = 0,
        store: Store | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._processes = processes
        self._me = me
        self._store = store
        self._timeout_s = timeout_s
        self._program = ""
        if len(processes) > 1:
            text = str(module.operation.get_asm(enable_debug_info=False))
            among = ",".join(map(str, processes))
            digest = hashlib.sha256(f"{among}\n{text}".encode()).hexdigest()
            self._program = f"hloom/{digest}"

    @property
    def are_several(self) -> bool:
        """Whether more than one process compiles the program."""
        return len(self._processes) > 1

    def largest(self, figures: Sequence[int]) -> tuple[int, ...]:
        """Returns the largest of each figure over the processes; all of them must call this alike.

        Raises AgreementError where a process did not call it in time, or no store is available.
        """
        if len(self._processes) < 2:
            return tuple(figures)
        if self._store is None:
            raise AgreementError(
                "the program runs in several processes, which cannot agree on a plan without "
                "jax.distributed.initialize()"
            )
        member = f"{self._program}/{self._me}"
        with _lock:
            # The same program may be compiled again, and each compile has several rounds.
            _rounds[member] += 1
            name = f"{self._program}/{_rounds[member]}"
        self._store.put(f"{name}/{self._me}", json.dumps(list(figures)))
        told = {
            process: self._store.get(f"{name}/{process}", self._timeout_s)
            for process in self._processes
        }
        missing = [str(process) for process, text in told.items() if text is None]
        if missing:
            # A late process must not find our figure and decide otherwise than we do: it is
            # deleted.
            self._store.delete(f"{name}/{self._me}")
            with _lock:
                _rounds[member] -= 1
            raise AgreementError(
                f"no figures from process {', '.join(missing)} in {self._timeout_s:g} s"
            )
        return tuple(map(max, *(json.loads(text) for text in told.values() if text is not None)))
