"""Processes that run one program decide alike: hloom/compiling/cross_process.py."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import jax
import numpy as np
import pytest
from jax.extend.mlir import ir
from support.processes import Board, run_members

from hloom.compiling.cross_process import Agreement, AgreementError


class MissingOne(Board):
    """A store in which two members wait for each other, and for the third no longer than it takes.

    So the test does not depend on how soon a thread starts.
    """

    def __init__(self, missing: int) -> None:
        super().__init__()
        self.missing: int | None = missing
        self._both_have_read = threading.Barrier(2)

    def get(self, key: str, timeout_s: float) -> str | None:
        if key.endswith(f"/{self.missing}"):
            return None
        return super().get(key, 30.0)

    def delete(self, key: str) -> None:
        self._both_have_read.wait(30.0)
        super().delete(key)


def a_module(factor: float) -> ir.Module:
    return jax.jit(lambda x: x * factor).lower(np.ones(3, np.float32)).compiler_ir()


def test_a_process_alone_has_its_own_figures() -> None:
    assert Agreement(a_module(1.5), (3,), me=3).largest([7, -2]) == (7, -2)


def test_all_get_the_largest() -> None:
    module, board = a_module(2.5), Board()
    results: dict[int, list[tuple[int, ...]]] = {}

    def work(me: int) -> None:
        agreement = Agreement(module, (0, 1, 2), me=me, store=board, timeout_s=30.0)
        results[me] = [agreement.largest([10 * me, -me]), agreement.largest([me])]

    run_apart(work)
    assert results == {me: [(20, 0), (2,)] for me in range(3)}


def run_apart(work: Callable[[int], None]) -> None:
    """Runs the work of three members side by side."""
    threads = [threading.Thread(target=work, args=(me,)) for me in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_who_does_not_tell_is_named_and_all_may_try_again() -> None:
    module, board = a_module(3.5), MissingOne(1)
    errors: dict[int, str] = {}
    results: dict[int, tuple[int, ...]] = {}

    def miss(me: int) -> None:
        if me == 1:
            return
        with pytest.raises(AgreementError) as caught:
            Agreement(module, (0, 1, 2), me=me, store=board, timeout_s=0.2).largest([me])
        errors[me] = str(caught.value)

    def meet(me: int) -> None:
        agreement = Agreement(module, (0, 1, 2), me=me, store=board, timeout_s=30.0)
        results[me] = agreement.largest([me])

    run_apart(miss)
    assert errors == dict.fromkeys((0, 2), "no figures from process 1 in 0.2 s")
    board.missing = None
    run_apart(meet)
    assert results == dict.fromkeys(range(3), (2,))


def test_without_a_store_there_is_no_agreement() -> None:
    with pytest.raises(AgreementError, match="jax.distributed.initialize"):
        Agreement(a_module(4.5), (0, 1)).largest([1])


MEMBER = """
import sys
import jax, json, numpy as np
process, port = int(sys.argv[1]), sys.argv[2]
jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=process)
import hloom
from support import toy_passes
from hloom.compiling import compilation
from hloom.passes.framework import registry
from jax.sharding import NamedSharding, PartitionSpec

figures = compilation.memory_figures
def own_figures(executable):
    # As if process 1's compiler needed a little more for the program as it is.
    found = figures(executable)
    if process == 0 and found.temp_bytes:
        found = dataclasses.replace(found, temp_bytes=found.temp_bytes - 100)
    return found
import dataclasses
compilation.memory_figures = own_figures

mesh = jax.sharding.Mesh(np.array(jax.devices()), ("i",))
sharding = NamedSharding(mesh, PartitionSpec("i"))
ones = np.ones((4, 64, 64), np.float32)
x = jax.make_array_from_callback(ones.shape, sharding, lambda i: ones[i], dtype=np.float32)
def step(x):
    y = x
    for _ in range(4): y = jax.lax.batch_matmul(y, x)
    return y
matrix_bytes = 4 * 64 * 64
spec = f"drop-products{{budget={4 * matrix_bytes - 50}B}}"
with registry.registered(toy_passes.DropProducts, toy_passes.Touch), hloom.passes(spec):
    jax.jit(step).lower(x).compile()
[record] = [record for record in hloom.records() if record.module == "jit_step"]
print(json.dumps([[attempt.step_bytes for attempt in record.attempts], record.best_attempt]))
"""


def test_processes_that_share_a_program_plan_alike() -> None:
    members = run_members(MEMBER, devices=2)
    for member in members:
        assert member.returncode == 0, member.stderr
    # By its own figures process 0 would have taken the program as it is.
    matrix_bytes = 4 * 64 * 64
    expected = [[4 * matrix_bytes, 3 * matrix_bytes], 1]
    assert [json.loads(member.stdout) for member in members] == [expected, expected]
