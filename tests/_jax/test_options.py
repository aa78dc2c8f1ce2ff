"""What hloom/_jax/options.py takes for granted of JAX.

`CompileOptions.env_option_overrides`, and a copy of it.
"""

from __future__ import annotations

import copy

from hloom._jax.options import own_options, partitions_and_replicas, take_option


def compile_options(**overrides: str) -> object:
    from jax._src import compiler

    return compiler.get_compile_options(1, 1, env_options_overrides=overrides)


def test_taking_the_option_leaves_the_callers_object_as_it_was() -> None:
    options = compile_options(hloom="remat", xla_cpu_enable_fast_math="1")
    before = options.SerializeAsString()
    for _ in range(2):
        spec, cleaned = take_option(options)
        assert spec == "remat"
        assert cleaned.env_option_overrides == [("xla_cpu_enable_fast_math", "1")]
    assert options.SerializeAsString() == before


def test_taking_the_option_changes_nothing_else() -> None:
    _, cleaned = take_option(compile_options(hloom="remat", xla_cpu_enable_fast_math="1"))
    expected = compile_options(xla_cpu_enable_fast_math="1")
    assert cleaned.SerializeAsString() == expected.SerializeAsString()


def test_a_copy_of_compile_options_is_whole_and_apart() -> None:
    options = compile_options(xla_cpu_enable_fast_math="1")
    options.executable_build_options.fdo_profile = b"profile"
    clone = copy.copy(options)
    assert clone.SerializeAsString() == options.SerializeAsString()
    clone.env_option_overrides = []
    assert options.env_option_overrides == [("xla_cpu_enable_fast_math", "1")]


def test_options_without_ours_are_handed_on_themselves() -> None:
    options = compile_options(xla_cpu_enable_fast_math="1")
    spec, same = take_option(options)
    assert spec is None
    assert same is options


def test_options_tell_partitions_and_what_the_program_set() -> None:
    options = compile_options(hloom="remat", xla_cpu_enable_fast_math="true")
    assert own_options(options) == {"xla_cpu_enable_fast_math": "true"}
    assert partitions_and_replicas(options) == (1, 1)
