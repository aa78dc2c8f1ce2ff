"""Who may connect to a process of a job, and what the others see of one that is gone."""

from __future__ import annotations

import socket
import threading
import time

import pytest
from support.processes import Board

from hloom_steps.mpmd import liveness
from hloom_steps.mpmd.liveness import Peers, StagesError

pytestmark = pytest.mark.once


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n" * 2, bytes(16) + b"\0\0\0\1"])
def test_a_stranger_is_not_listened_to(
    said: bytes, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atexit.register", lambda _: None)
    store = Board()
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


def test_a_process_that_never_comes_is_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(liveness, "_MEET_S", 0.2)
    with pytest.raises(
        StagesError,
        match=r"processes 1, 2 of jax.distributed did not come within 0.2 s to process 0 at "
        r"127.0.0.1:\d+\. All have to call place",
    ):
        Peers(Board(), 0, 3, "127.0.0.1")  # type: ignore[arg-type]
    with pytest.raises(StagesError, match=r"process 0 of .* within 0.2 s to process 1 at 127"):
        Peers(Board(), 1, 2, "127.0.0.1")  # type: ignore[arg-type]


def test_a_process_that_is_gone_before_it_is_met_is_named() -> None:
    store = Board()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    store.put("hloom/stages/address/0", f"127.0.0.1:{port}:{bytes(16).hex()}")
    with pytest.raises(StagesError, match=rf"process 0 cannot be reached at 127.0.0.1:{port}: "):
        Peers(store, 1, 2, "127.0.0.1")  # type: ignore[arg-type]
