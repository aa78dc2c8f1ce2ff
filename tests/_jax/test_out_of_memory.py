"""What is read from the errors with which XLA refuses a program that does not fit."""

from __future__ import annotations

import jax
import pytest

from hloom._jax.out_of_memory import OutOfMemory, out_of_memory

GIB = 2**30

OF_JAX_0_10 = (
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries "
    "(16.26G) exceeds available HBM (15.75G)."
)
OF_JAX_0_12 = (
    "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory "
    "required for HLO temporaries (15.76G) exceeds available HBM (15.75G). HLO module: jit_loss.\n"
    "See https://openxla.org/xla/errors/error_1000 for more details."
)
OF_BUFFERS = (
    "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. "
    "Used 20.15G of 15.48G hbm. Exceeded hbm capacity by 4.67G.\n\nTotal hbm usage >= 20.67G:\n"
    "    reserved        530.00M\n    program          19.50G\n    arguments       662.81M\n"
)


@pytest.mark.parametrize(
    ("text", "used", "limit"),
    [
        (OF_JAX_0_10, 16.26 * GIB, 15.75 * GIB),
        (OF_JAX_0_12, 15.76 * GIB, 15.75 * GIB),
        (OF_BUFFERS, 20.15 * GIB, 15.48 * GIB),
        ("RESOURCE_EXHAUSTED: Used 900.0M of 512.50M hbm.", 900 * 2**20, 512.5 * 2**20),
        ("RESOURCE_EXHAUSTED: Used 1.50TiB of 95.74GiB hbm.", 1.5 * 2**40, 95.74 * GIB),
        ("RESOURCE_EXHAUSTED: Used 4096K of 1000B hbm.", 4096 * 2**10, 1000),
    ],
)
def test_every_wording_and_unit_is_read(text: str, used: float, limit: float) -> None:
    assert out_of_memory(jax.errors.JaxRuntimeError(text)) == OutOfMemory(round(used), round(limit))


def test_rounded_to_the_limit_it_is_above_it_still() -> None:
    text = OF_JAX_0_10.replace("16.26G", "15.75G")
    found = out_of_memory(jax.errors.JaxRuntimeError(text))
    assert found is not None
    assert found.used_bytes == found.limit_bytes + 1


@pytest.mark.parametrize(
    "text",
    [
        "INVALID_ARGUMENT: Used 20.15G of 15.48G hbm.",
        "RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem. Used 20.0M of 16.0M vmem.",
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 21474836480 bytes.",
        "RESOURCE_EXHAUSTED: Used all of it hbm.",
        "",
    ],
)
def test_of_any_other_error_nothing_is_read(text: str) -> None:
    assert out_of_memory(jax.errors.JaxRuntimeError(text)) is None


def test_errors_that_are_not_xlas_tell_nothing() -> None:
    assert out_of_memory(ValueError(OF_JAX_0_10)) is None
