"""What hloom/_jax/version.py takes for granted of JAX: the tested range."""

from __future__ import annotations

from importlib.metadata import requires

from hloom._jax.version import FIRST_UNTESTED, OLDEST_TESTED, is_tested_version


def test_this_jax_is_in_the_tested_range() -> None:
    assert is_tested_version()


def test_the_tested_range_is_the_one_that_is_installed_with() -> None:
    oldest, untested = (".".join(map(str, version)) for version in (OLDEST_TESTED, FIRST_UNTESTED))
    [requirement] = [line for line in requires("hloom") or [] if line.startswith("jax<")]
    assert requirement == f"jax<{untested},>={oldest}"
