"""What hloom/_jax/distributed.py takes for granted of JAX.

`jax._src.distributed.global_state.client`.
"""

from __future__ import annotations

import socket

from support import RunPython

from hloom._jax.distributed import ProcessStore


def test_a_process_alone_has_no_store() -> None:
    assert ProcessStore.find() is None


def test_processes_share_a_store(run_python: RunPython) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = f"""
import jax
jax.distributed.initialize("127.0.0.1:{port}", num_processes=1, process_id=0)
from hloom._jax.distributed import ProcessStore
store = ProcessStore.find()
store.put("hloom/a", "[1]")
print(store.get("hloom/a", 1.0))
store.delete("hloom/a")
print(store.get("hloom/a", 0.1))
store.put("hloom/a", "[2]")
print(store.get("hloom/a", 1.0))
"""
    assert run_python(script).stdout.splitlines() == ["[1]", "None", "[2]"]
