"""Makes the processes that run one program decide alike.

Each process compiles the program for itself, and what it compiles must be the same everywhere, or
their collectives would not meet. So where a decision rests on a figure that a process reads off
its own device or compile, all of them use the largest. They tell each other through the
key-value store of `jax.distributed`.
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
"""How long to wait for another process's figures: as long as JAX waits for a shared executable."""

_rounds: Counter[str] = Counter()
_lock = threading.Lock()


class Store(Protocol):
    """A key-value store that the processes share."""

    def put(self, key: str, value: str) -> None:
        """Stores a value."""

    def get(self, key: str, timeout_s: float) -> str | None:
        """The value, as soon as there is one; None where there was none in time."""

    def delete(self, key: str) -> None:
        """Forgets a value."""


class AgreementError(RuntimeError):
    """Other processes did not tell their figures in time; the text says which."""


class Agreement:
    """What the processes of one compile of one program agree on.

    With fewer than two processes nothing is asked, and every process has its own figures.
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

    def largest(self, figures: Sequence[int]) -> tuple[int, ...]:
        """The largest of each figure over the processes; all of them call this alike.

        Raises AgreementError where one of them did not in time, or where there is no way to ask.
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
            # Who is late shall find nobody either, rather than decide another way than we do.
            self._store.delete(f"{name}/{self._me}")
            with _lock:
                _rounds[member] -= 1
            raise AgreementError(
                f"no figures from process {', '.join(missing)} in {self._timeout_s:g} s"
            )
        return tuple(map(max, *(json.loads(text) for text in told.values() if text is not None)))
