"""Which programs the flag's passes run on: by name, and by size where they only save memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import RunPython
from support import toy_passes as toy
from support.doubling import NewRecords, X, factor, fresh_jit, with_option

import hloom
from hloom.passes.framework import registry
from hloom.passes.ir.walk import values_take
from hloom.settings import programs


@pytest.fixture(autouse=True)
def _toys(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(programs, "_seen", {})
    with registry.registered(toy.ReplaceTwo, toy.Touch):
        yield
    for name in ("jax_hloom_modules", "jax_hloom_min_size"):
        jax.config.update(name, None)


def named(name: str, **options: Any) -> Any:
    """A jit of x * 2 with this name."""

    def function(x: jax.Array) -> jax.Array:
        return x * 2.0

    function.__name__ = name
    return jax.jit(function, **options)


# By name.


@pytest.mark.parametrize(
    ("patterns", "ran"),
    [
        ("jit_train*", ["train_step"]),
        ("jit_train_step", ["train_step"]),
        ("train_step", []),
        ("*_step", ["train_step", "eval_step"]),
        ("jit_eval*, jit_init", ["eval_step", "init"]),
        ("JIT_*", []),
        ("", ["train_step", "eval_step", "init"]),
        (None, ["train_step", "eval_step", "init"]),
    ],
)
def test_patterns(patterns: str | None, ran: list[str]) -> None:
    jax.config.update("jax_hloom_modules", patterns)
    with hloom.passes("replace-two"):
        found = [n for n in ("train_step", "eval_step", "init") if factor(named(n)(X)) == 3]
    assert found == ran


def test_a_jits_own_option_is_not_restricted() -> None:
    jax.config.update("jax_hloom_modules", "jit_train*")
    assert factor(named("eval_step", **with_option("replace-two"))(X)) == 3


def test_another_value_recompiles(new_records: NewRecords) -> None:
    f = named("step")
    with hloom.passes("replace-two"):
        for patterns, expected in (("jit_step", 3), ("jit_other", 2), ("jit_st*", 3), (None, 3)):
            jax.config.update("jax_hloom_modules", patterns)
            assert factor(f(X)) == expected
    assert len(new_records()) == 3


def test_executables_are_kept_by_it() -> None:
    lowered = named("step").lower(X)
    with hloom.passes("replace-two"):
        for patterns, expected in (("jit_other", 2), ("jit_step", 3), ("jit_other", 2)):
            jax.config.update("jax_hloom_modules", patterns)
            assert factor(lowered.compile()(X)) == expected


def test_no_pattern_means_anything_without_the_flag() -> None:
    jax.config.update("jax_hloom_modules", "jit_other")
    assert factor(named("step")(X)) == 2


@pytest.mark.parametrize("value", [3, ("jit_a",), ["jit_a"]])
def test_patterns_are_a_string(value: object) -> None:
    with pytest.raises(
        hloom.SpecError,
        match=r"^jax_hloom_modules=.*: wanted patterns of module names in one string, such as "
        r"'jit_train\*,jit_loss'\.$",
    ):
        jax.config.update("jax_hloom_modules", value)


def test_patterns_that_nothing_matched_are_reminded_of(capsys: pytest.CaptureFixture[str]) -> None:
    with hloom.passes("replace-two"):
        jax.config.update("jax_hloom_modules", "jit_trian*,jit_x")
        for name in "abcdefg":
            named(name)(X)
        named("c")(np.ones(3))
        jax.config.update("jax_hloom_modules", "jit_step")
        named("step")(X)
        named("other")(X)
    programs.remind()
    assert capsys.readouterr().err == (
        "hloom: JAX_HLOOM_MODULES='jit_trian*,jit_x': no program has a name that it matches, and "
        "no pass ran. There were jit_d, jit_e, jit_f, jit_g, jit_c and others.\n"
    )


SCRIPT = """
import jax, numpy as np
from support import toy_passes
from hloom.passes.framework import registry
def step(x):
    return x * 2.0
def other(x):
    return x * 2.0
with registry.registered(toy_passes.ReplaceTwo):
    print([float(jax.jit(f)(np.ones(3, np.float32))[0]) for f in (step, other)])
"""


def test_the_environment(run_python: RunPython) -> None:
    result = run_python(SCRIPT, JAX_HLOOM="replace-two", JAX_HLOOM_MODULES="jit_st*")
    assert result.stdout == "[3.0, 2.0]\n"
    assert result.stderr == ""
    result = run_python(SCRIPT, JAX_HLOOM="replace-two", JAX_HLOOM_MODULES="step")
    assert result.stdout == "[2.0, 2.0]\n"
    assert result.stderr.startswith("hloom: JAX_HLOOM_MODULES='step': no program has a name")
    result = run_python(SCRIPT, check=False, JAX_HLOOM="replace-two", JAX_HLOOM_MIN_SIZE="1M")
    assert result.stdout == ""
    assert (
        "SpecError: JAX_HLOOM_MIN_SIZE='1M': wanted a size such as 1MiB, or 0 for every program. "
        "Did you mean '1MiB' or '1MB'?"
    ) in result.stderr


# By size.


def gradient(size: int) -> Any:
    """A program with a backward pass on values of so many numbers."""
    return jax.jit(jax.grad(lambda x: jnp.tanh(jnp.sin(x)).sum())), np.ones(size, np.float32)


def test_a_program_that_is_too_small_is_left_alone(new_records: NewRecords) -> None:
    small, large = gradient(2**10), gradient(2**18)
    with hloom.passes("remat"):
        for function, x in (small, large):
            function(x)
    assert [record.argument_bytes for record in new_records()] == [2**20]


def test_the_least_size(new_records: NewRecords) -> None:
    with hloom.passes("remat{budget=50%}"):
        for size, ran in (
            ("1KiB", True),
            ("1MiB", False),
            ("0", True),
            ("2GiB", False),
            (4096, True),
        ):
            jax.config.update("jax_hloom_min_size", size)
            before = len(new_records())
            function, x = gradient(2**10)
            function(x)
            assert (len(new_records()) > before) is ran, size


def test_passes_that_do_more_than_save_memory_run_on_every_program(new_records: NewRecords) -> None:
    with hloom.passes("remat{budget=50%},replace-two"):
        assert factor(fresh_jit()(X)) == 3
    [record] = new_records()
    assert record.spec == "replace-two"


def test_a_jits_own_option_has_no_least_size(new_records: NewRecords) -> None:
    fresh_jit(**with_option("remat"))(X)
    [record] = new_records()
    assert record.spec == "remat"


@pytest.mark.parametrize("value", [-1, True, 1.5, "-1", "1 MiB", "much"])
def test_a_mistaken_size(value: object) -> None:
    with pytest.raises(hloom.SpecError, match="^jax_hloom_min_size=.*: wanted a size such as 1MiB"):
        jax.config.update("jax_hloom_min_size", value)


def test_what_all_values_take() -> None:
    # The argument, the constant that is spread over it, and the product.
    module = jax.jit(lambda x: x * 2.0).lower(np.ones(256, np.float32)).compiler_ir()
    takes = 3 * 1024 + 4
    assert values_take(module, takes)
    assert not values_take(module, takes + 1)
    assert values_take(module, 0)
