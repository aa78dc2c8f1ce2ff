"""Detects dead processes of a job: each process is connected to each other one, and sees at once
which dies.

A connecting process sends a token from the job's key-value store; other connections are dropped.

A dying process closes its connections, whatever it was doing, and the system closes them when the
other host does not answer (TCP keep-alive). No thread has to run in a live process: one that traces
or compiles for minutes does not look dead.
"""

from __future__ import annotations

import atexit
import contextlib
import hmac
import os
import secrets
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable

from hloom._jax.distributed import ProcessStore

_KEY = "hloom/stages/address"
_MEET_S = 300.0
"""Seconds to wait for another process's address, or connection."""
_SILENT_S, _PROBES = 3, 4
"""Silent seconds after which a host is probed, and the number of probes, one per second."""
_GOODBYE = b"."
_TOKEN_BYTES = 16
_HELLO_S = 10.0
"""Seconds in which a connecting process identifies itself, and standard error takes a line."""


class StagesError(RuntimeError):
    """A step cannot be finished: another process has died, or does not connect."""


class Peers:
    """The connections to the other processes of a job, and which of them have died.

    Raises StagesError where one of them does not connect.

    Args:
      store: the key-value store in which processes publish their addresses.
      me: the number of this process.
      processes: the number of processes.
      host: the address at which others reach this process.
    """

    def __init__(self, store: ProcessStore, me: int, processes: int, host: str) -> None:
        self._me = me
        self._told: list[Callable[[], None]] = []
        self._gone: dict[int, str] = {}
        self._lock = threading.Lock()
        self._selector = selectors.DefaultSelector()
        self._sockets: dict[int, socket.socket] = {}
        self._meet(store, processes, host)
        atexit.register(self._say_goodbye)
        threading.Thread(target=self._watch, name="hloom-stages-peers", daemon=True).start()

    @property
    def gone(self) -> dict[int, str]:
        """Returns the processes that have died, by number, each with the event: "has died"."""
        with self._lock:
            return dict(self._gone)

    def tell(self, changed: Callable[[], None]) -> None:
        """Registers a function that is called when a process dies."""
        self._told.append(changed)

    def _meet(self, store: ProcessStore, processes: int, host: str) -> None:
        """Connects to the processes with lower numbers; those with higher numbers connect to this
        one."""
        token = secrets.token_bytes(_TOKEN_BYTES)
        with socket.create_server((host, 0)) as server:
            port = server.getsockname()[1]
            store.put(f"{_KEY}/{self._me}", f"{host}:{port}:{token.hex()}")
            for other in range(self._me):
                address = store.get(f"{_KEY}/{other}", _MEET_S)
                if address is None:
                    raise StagesError(self._absent(host, [other]))
                there, its_port, its_token = address.rsplit(":", 2)
                try:
                    connection = socket.create_connection((there, int(its_port)), _MEET_S)
                    connection.sendall(bytes.fromhex(its_token) + self._me.to_bytes(4, "big"))
                except OSError as error:
                    raise StagesError(
                        f"hloom.stages: process {other} cannot be reached at {there}:{its_port}: "
                        f"{error.strerror or error}; this is process {self._me} on {host}. It has "
                        "died, or a firewall is between the hosts: processes of stages connect to "
                        "each other at any port."
                    ) from None
                self._keep(other, connection)
            wanted = set(range(self._me + 1, processes))
            deadline = time.monotonic() + _MEET_S
            while missing := wanted - self._sockets.keys():
                server.settimeout(max(0.1, deadline - time.monotonic()))
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    raise StagesError(self._absent(f"{host}:{port}", sorted(missing))) from None
                found = _who(connection, token)
                if found is not None and found in missing:
                    self._keep(found, connection)
                else:
                    connection.close()

    def _absent(self, where: str, processes: list[int]) -> str:
        who = f"process{'es' * (len(processes) > 1)} {', '.join(map(str, processes))}"
        return (
            f"hloom.stages: {who} of jax.distributed did not come within {_MEET_S:g} s to process "
            f"{self._me} at {where}. All have to call place, or the step, with the same stages: "
            "see whether that one runs, and what it does instead; if it waits as well, a firewall "
            "is between the hosts."
        )

    def _keep(self, other: int, connection: socket.socket) -> None:
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            ("TCP_KEEPIDLE", _SILENT_S), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", _PROBES),
        ):  # fmt: skip
            if hasattr(socket, option):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        self._sockets[other] = connection
        self._selector.register(connection, selectors.EVENT_READ, other)

    def _watch(self) -> None:
        ended: set[int] = set()
        while self._selector.get_map():
            for key, _ in self._selector.select():
                connection, other = key.fileobj, key.data
                assert isinstance(connection, socket.socket)
                try:
                    said = connection.recv(1)
                except OSError:
                    said = b""
                if said == _GOODBYE:
                    ended.add(other)
                    continue
                self._selector.unregister(connection)
                if other not in ended:
                    # Reported at once, before the step can fail and end this process: JAX ends it
                    # without hloom's message if process 0 dies. A full pipe may never take it.
                    line = f"hloom.stages: process {other} has died; this is process {self._me}\n"
                    writer = threading.Thread(target=_write_error, args=(line,), daemon=True)
                    writer.start()
                    writer.join(_HELLO_S)
                with self._lock:
                    self._gone[other] = "has ended" if other in ended else "has died"
                for changed in list(self._told):
                    changed()

    def _say_goodbye(self) -> None:
        for connection in self._sockets.values():
            try:
                connection.sendall(_GOODBYE)
            except OSError:
                continue


def _write_error(line: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, line.encode())


def _who(connection: socket.socket, token: bytes) -> int | None:
    """Returns the number of the process that has connected; None where it does not know the
    token."""
    connection.settimeout(_HELLO_S)
    try:
        said = connection.recv(len(token) + 4, socket.MSG_WAITALL)
    except OSError:
        return None
    if not hmac.compare_digest(said[: len(token)], token):
        return None
    return int.from_bytes(said[len(token) :], "big")
