"""What hloom/_jax/distributed.py takes for granted of JAX.

`client` and `coordinator_address` of `jax._src.distributed.global_state`, and that what processes
tell each other is compressed.
"""

from __future__ import annotations

import re

from support import RunPython
from support.processes import free_port

from hloom._jax.distributed import ProcessStore, coordinator_address


def test_a_process_alone_has_no_store_and_no_coordinator() -> None:
    assert ProcessStore.find() is None
    assert coordinator_address() is None


def with_store() -> str:
    """The beginning of a script that has a store, as the only process of a job."""
    return f"""
import jax
jax.distributed.initialize("127.0.0.1:{free_port()}", num_processes=1, process_id=0)
from hloom._jax.distributed import ProcessStore
store = ProcessStore.find()
"""


def test_what_processes_tell_each_other_is_compressed(run_python: RunPython) -> None:
    script = with_store() + """store.put("hloom/plan", "[0, 1]" * 1000)"""
    traced = run_python(script, GRPC_VERBOSITY="INFO", GRPC_TRACE="compression").stderr
    sizes = re.findall(r"Compressed\[gzip\] (\d+) bytes vs. (\d+) bytes", traced)
    # The figures that a job agrees on are short; a plan would be sent in a fraction of its bytes.
    assert any(int(before) > 6000 and int(after) < 600 for before, after in sizes), traced[-2000:]


def test_the_address_of_the_coordinator_is_known(run_python: RunPython) -> None:
    script = (
        with_store()
        + """
from hloom._jax.distributed import coordinator_address
print(coordinator_address())
"""
    )
    assert re.fullmatch(r"127\.0\.0\.1:\d+\n", run_python(script).stdout)


def test_processes_share_a_store(run_python: RunPython) -> None:
    script = f"""
{with_store()}
store.put("hloom/a", "[1]")
print(store.get("hloom/a", 1.0))
store.delete("hloom/a")
print(store.get("hloom/a", 0.1))
store.put("hloom/a", "[2]")
print(store.get("hloom/a", 1.0))
"""
    assert run_python(script).stdout.splitlines() == ["[1]", "None", "[2]"]
