"""A mistake in a spec is shown at the user's line, without the frames of JAX and hloom."""

from __future__ import annotations

import sys
import traceback

import jax
import pytest

import hloom


def mistaken(x: int) -> None:
    jax.jit(lambda x: x + 1, compiler_options={"hloom": "fti"})(x)


def test_what_a_jit_raises_has_the_users_frames_alone() -> None:
    with pytest.raises(hloom.SpecError) as caught:
        mistaken(1)
    assert {frame.filename for frame in traceback.extract_tb(caught.tb)} == {__file__}


@pytest.mark.parametrize(("filtering", "hidden"), [("auto", True), ("off", False)])
def test_what_ends_a_program_has_the_users_frames_alone(
    filtering: str, hidden: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", filtering)
    try:
        with pytest.raises(hloom.SpecError) as caught, hloom.passes("fti"):
            pass
        sys.excepthook(caught.type, caught.value, caught.tb)
    finally:
        jax.config.update("jax_traceback_filtering", before)
    printed = capsys.readouterr().err
    assert __file__ in printed
    assert ("hloom/passes/framework" not in printed) == hidden
    assert "Did you mean 'fit'?" in printed


def test_a_name_near_that_of_the_option_is_told() -> None:
    with pytest.raises(hloom.SpecError, match=r"has 'hlooom'\. Did you mean 'hloom'\?"):
        jax.jit(lambda x: x + 1, compiler_options={"hlooom": "fit"})(1)
