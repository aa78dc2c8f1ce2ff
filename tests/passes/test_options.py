"""Options of every pass: how specs read and print, and what is said of mistaken ones."""

from __future__ import annotations

import pytest

import hloom
from hloom.passes.framework import registry
from hloom.passes.framework.base import Pass
from hloom.passes.framework.options import options_of
from hloom.passes.framework.pipeline import Pipeline

pytestmark = pytest.mark.once

every_pass = pytest.mark.parametrize("cls", registry.all_passes(), ids=lambda cls: cls.name)


WITH_DEFAULTS = {
    "barriers{timeout=60s}": "barriers",
    "pipeline{axis=stage microbatches=16}": "pipeline{microbatches=16}",
}
"""Examples that name what is the default, and how they print."""


@every_pass
def test_an_example_prints_as_it_is_written(cls: type[Pass]) -> None:
    pipeline = Pipeline.parse(cls.example)
    assert str(pipeline) == WITH_DEFAULTS.get(cls.example, cls.example)
    assert Pipeline.parse(str(pipeline)) == pipeline


@every_pass
def test_an_option_that_there_is_not(cls: type[Pass]) -> None:
    spec = f"{cls.name}{{nonsense=1}}"
    said = f"pass '{cls.name}' has no option 'nonsense' (at character {len(cls.name) + 2})."
    with pytest.raises(hloom.SpecError) as caught:
        Pipeline.parse(spec)
    told = str(caught.value)
    assert told.startswith(f"spec='{spec}': {said}")
    assert told.endswith(" It has no options.") is (not list(options_of(cls)))


@every_pass
def test_a_pass_that_is_named_twice(cls: type[Pass]) -> None:
    if cls.once:
        with pytest.raises(hloom.SpecError, match="twice"):
            Pipeline.parse(f"{cls.name},{cls.name}")
    else:
        assert len(Pipeline.parse(f"{cls.name},{cls.name}").passes) == 2


@pytest.mark.parametrize(
    ("spec", "printed"),
    [
        ("accumulate{microbatches=8 args=batch['x'];y:1;7 dtype=keep phases=3}", None),
        ("accumulate{budget=60GiB compiles=2}", None),
        ("accumulate{args=x:0 microbatches=2}", "accumulate{microbatches=2 args=x}"),
        ("barriers{timeout=60s}", "barriers"),
        ("barriers{timeout=500ms}", None),
        ("barriers{timeout=1.5s}", "barriers{timeout=1500ms}"),
        ("barriers{timeout=2000ms}", "barriers{timeout=2s}"),
        ("barriers{order=barriers exit=off}", "barriers{exit=off order=barriers}"),
        ("pipeline{axis=pipe microbatches=16 repeats=2 dtype=keep}", None),
        ("split{residuals=1024MiB}", "split{residuals=1GiB}"),
    ],
)
def test_specs_read_and_print(spec: str, printed: str | None) -> None:
    assert str(Pipeline.parse(spec)) == (printed or spec)


BUDGETS = "'remat' has something to hold, and so has 'accumulate'"
SIZES = "option 'min_bytes' of pass 'free-constants' wants a size in bytes such as 4KiB or 60GiB"
TIMES = "option 'timeout' of pass 'barriers' wants a time such as 60s or 500ms, at least 1ms"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("accumulate{microbatches=2 budget=min}", "wants microbatches or a budget; got both"),
        ("accumulate,remat{budget=1GiB}", BUDGETS),
        ("accumulate{budget=1GiB},remat{budget=1GiB}", f"{BUDGETS} (at character 25). One pass"),
        ("accumulate{microbatches=0}", "wants a whole number, at least 1, got '0'"),
        ("accumulate{microbatches=2 dtype=f16}", "wants one of f32, keep, got 'f16'"),
        ("accumulate{microbatches=2 args=;x}", "Several are parted by ';'."),
        ("attention{min_keys=0}", "option 'min_keys' of pass 'attention' wants a whole number, at"),
        ("attention{kernel=flash}", "wants one of auto, cudnn, pallas, emulated, got 'flash'"),
        ("attention{cast=f16}", "has no choice 'f16' (at character 16). Did you mean 'bf16'?"),
        ("barriers{timeout=0s}", f"{TIMES}, got '0s' (at character 18)."),
        ("barriers{timeout=1h}", TIMES),
        ("barriers{timeout=0.0001s}", TIMES),
        ("barriers{timeout=5}", "got '5' (at character 18). Did you mean '5s'?"),
        ("barriers{timeout=0}", "got '0' (at character 18)."),
        ("barriers{timeout=0.0}", "got '0.0' (at character 18)."),
        ("barriers{timeout=000m}", "got '000m' (at character 18)."),
        ("barriers{order=none}", "wants one of all, barriers"),
        ("capture{min_ops=0}", "option 'min_ops' of pass 'capture' wants a whole number, at least"),
        ("chunk{chunks=1}", "option 'chunks' of pass 'chunk' wants a whole number, at least 2"),
        ("free-constants{min_bytes=0}", f"{SIZES}, at least 1, got '0' (at character 26)."),
        ("free-constants{min_bytes=some}", f"{SIZES}, at least 1, got 'some' (at character 26)"),
        ("late-gather{min_byte=1MiB}", "Did you mean 'min_bytes'?"),
        ("overlap{direction=both}", "Did you mean 'directions'?"),
        ("overlap{directions=two}", "wants one of one, both"),
        ("pipeline{microbatches=1}", "wants a whole number, at least 2, got '1'"),
        ("pipeline{repeats=0}", "wants a whole number, at least 1, got '0'"),
        ("pipeline{axis=}", "the name of an axis of the mesh, such as stage, got nothing"),
        ("split{residuals=much}", "option 'residuals' of pass 'split' wants a size"),
        ("unroll{trips=-1}", "wants a whole number, at least 0, got '-1' (at character 14)."),
        ("unroll{loops=some}", "wants one of cut, all, got 'some' (at character 14)."),
        ("uninitialized-stacks{compiles=0}", "option 'compiles' of pass 'uninitialized-stacks'"),
    ],
)
def test_mistaken_specs(spec: str, said: str) -> None:
    """A text that ends a sentence ends the message."""
    with pytest.raises(hloom.SpecError) as caught:
        Pipeline.parse(spec)
    told = str(caught.value)
    assert told.startswith(f"spec='{spec}': ")
    assert said in told
    assert told.endswith(said) or not said.endswith(".")
