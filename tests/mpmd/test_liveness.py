"""Who may connect to a process of a job, and what the others see of one that is gone."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from hloom.mpmd.liveness import Peers

pytestmark = pytest.mark.once


class Store:
    """What processes tell each other, in one process."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._news = threading.Condition()

    def put(self, key: str, value: str) -> None:
        with self._news:
            self._values[key] = value
            self._news.notify_all()

    def get(self, key: str, timeout_s: float) -> str | None:
        with self._news:
            self._news.wait_for(lambda: key in self._values, timeout_s)
            return self._values.get(key)

    def delete(self, key: str) -> None:
        with self._news:
            del self._values[key]


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n" * 2, bytes(16) + b"\0\0\0\1"])
def test_a_stranger_is_not_listened_to(
    said: bytes, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atexit.register", lambda _: None)
    store = Store()
    met: list[Peers] = []
    first = threading.Thread(target=lambda: met.append(Peers(store, 0, 2, "127.0.0.1")))  # type: ignore[arg-type]
    first.start()
    address = store.get("hloom/stages/address/0", 10.0)
    assert address is not None
    host, port, _ = address.rsplit(":", 2)
    with socket.create_connection((host, int(port))) as stranger:
        stranger.sendall(said)
    second = Peers(store, 1, 2, "127.0.0.1")  # type: ignore[arg-type]
    first.join(10.0)
    [one] = met
    assert one.gone == second.gone == {}
    for connection in second._sockets.values():
        connection.shutdown(socket.SHUT_RDWR)
    deadline = time.monotonic() + 10.0
    while not one.gone and time.monotonic() < deadline:
        time.sleep(0.01)
    assert one.gone == {1: "has died"}
    assert "process 1 has died; this is process 0" in capfd.readouterr().err
