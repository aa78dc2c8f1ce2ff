"""What a wrong spec is told, word for word."""

from __future__ import annotations

import jax
import pytest
from support import registering
from support import toy_passes as toy

from hloom.passes.framework import registry
from hloom.passes.framework.errors import SpecError
from hloom.passes.framework.pipeline import Pipeline

_toys = registering(toy.Toy, toy.Touch, scope="module")


def known_passes() -> str:
    names = ", ".join(cls.name for cls in registry.all_passes())
    return f"Passes: {names}; or 'default', or 'off'. `hloom passes` lists them with their options."


UNITS = " Units: B, KiB, MiB, GiB, TiB; KB, MB, GB, TB are powers of 1000."
QUOTE = " In a shell a spec stands in quotes: JAX_HLOOM='fit{budget=60GiB compiles=2}'."
TOY_OPTIONS = "Options: budget, limit, loud, mode, ratio, room, size, weight."

POLICIES = [name for name in vars(jax.checkpoint_policies) if name[0] != "_"]

DIAGNOSTICS = [
    # Names of passes.
    ("toyy", "unknown pass 'toyy' (at character 1). Did you mean 'toy'?"),
    ("toy, tuch", "unknown pass 'tuch' (at character 6). Did you mean 'touch'?"),
    ("defualt", "unknown pass 'defualt' (at character 1). Did you mean 'default'?"),
    ("xyzzy{a=b}", "unknown pass 'xyzzy' (at character 1). {passes}"),
    ("TOY", "unknown pass 'TOY' (at character 1). Did you mean 'toy'?"),
    *(
        (word, f"unknown pass {word!r} (at character 1). Did you mean 'default'?")
        for word in ("true", "True", "1", "on", "yes")
    ),
    *(
        (word, f"unknown pass {word!r} (at character 1). Did you mean 'off'?")
        for word in ("none", "None", "0", "false", "no")
    ),
    *(
        (
            f"toy{mark}limit=3)",
            f"unknown pass 'toy{mark}limit' (at character 1). Options stand in braces: "
            "toy{{option=value}}.",
        )
        for mark in "([:"
    ),
    ("\x1b[31mtoy", "unknown pass '\\x1b[31mtoy' (at character 1). {passes}"),
    # The list.
    ("toy,", "expected a pass, got nothing (at character 5). {passes}"),
    (",toy", "expected a pass, got ',' (at character 1). {passes}"),
    ("toy,,touch", "expected a pass, got ',' (at character 5). {passes}"),
    ("{limit=1}", "expected a pass, got '{' (at character 1). {passes}"),
    (
        "toy{limit=1};touch",
        "expected ',' or the end, got ';touch' (at character 13). Passes are joined by ','.",
    ),
    ("toy;touch", "unknown pass 'toy;touch' (at character 1). Passes are joined by ','."),
    (
        "'toy'",
        "unknown pass \"'toy'\" (at character 1). The quotes are part of the value: "
        "leave them out.",
    ),
    (
        "toy touch",
        "expected ',' or the end, got 'touch' (at character 5). Passes are joined by ',': "
        "toy,touch.",
    ),
    *(
        (
            policy,
            f"unknown pass '{policy}' (at character 1). That is a policy of rematerialization; "
            "hloom is told a budget: 'fit{{budget=60%}}'.",
        )
        for policy in ("full", "minimal_with_context", "minimal_offloaded", *POLICIES)
    ),
    (
        "fit{moves=remat}",
        "option 'moves' of pass 'fit' has no choice 'remat' (at character 11). "
        "Did you mean 'recompute'?",
    ),
    ("toy}", "expected ',' or the end, got '}' (at character 4)."),
    (
        "toy=3",
        "expected ',' or the end, got '=' (at character 4). Options stand in braces: "
        "toy{{limit=...}}.",
    ),
    (
        "toy limit=3",
        "expected ',' or the end, got 'limit' (at character 5). Options stand in braces: "
        "toy{{limit=...}}.",
    ),
    ("touch=3", "expected ',' or the end, got '=' (at character 6)."),
    # A pass that has nothing to do the second time.
    ("remat,remat", "pass 'remat' is named twice (at character 7)."),
    ("toy, remat{budget=fit},toy,remat", "pass 'remat' is named twice (at character 28)."),
    ("default,fit", "pass 'fit' is named twice (at character 9)."),
    ("fit,default", "pass 'fit' is named twice (at character 5)."),
    ("barriers,barriers{entry=off}", "pass 'barriers' is named twice (at character 10)."),
    ("capture,toy,capture", "pass 'capture' is named twice (at character 13)."),
    ("off,toy", "'off' stands alone: it switches hloom off (at character 1)."),
    ("toy, off", "'off' stands alone: it switches hloom off (at character 6)."),
    ("off{x=1}", "'off' takes no options (at character 1)."),
    (
        "remat{level=cheap}",
        "pass 'remat' has no option 'level' (at character 7). "
        "Options: budget, compiles, min_bytes.",
    ),
    ("default{level=cheap}", "'default' takes no options (at character 1)."),
    # Braces and names of options.
    ("toy{limit=3", "the '{' of pass 'toy' has no '}' (at character 4)." + QUOTE),
    ("toy{", "the '{' of pass 'toy' has no '}' (at character 4)." + QUOTE),
    ("toylimit=3", "unknown pass 'toylimit' (at character 1). A shell took its braces." + QUOTE),
    ("toy{8}", "pass 'toy' has no option '8' (at character 5). Did you mean 'limit=8'?"),
    ("toy{60GiB}", "pass 'toy' has no option '60GiB' (at character 5). Did you mean 'size=60GiB'?"),
    (
        "toy{budget=50 %}",
        "option 'budget' of pass 'toy' wants a size such as 60GiB, a share such as 50%, fit, or "
        "min, got '50' (at character 12). Did you mean '50%'?",
    ),
    *(
        (
            budget,
            f"unknown pass '{budget}' (at character 1). Did you mean 'fit{{{{budget={budget}}}}}'?",
        )
        for budget in ("60GiB", "50%")
    ),
    (
        "toy{limit=3,loud=on}",
        "expected an option of pass 'toy' or '}}', got ',' (at character 12). Options are parted "
        "by spaces.",
    ),
    ("toy{size=60 GiB}", "pass 'toy' has no option 'GiB' (at character 13). Did you mean '60GiB'?"),
    (
        "toy{size= 1.5 gb loud=on}",
        "option 'size' of pass 'toy' wants a size in bytes such as 4KiB or 60GiB, got '1.5' "
        "(at character 11). Did you mean '1.5GB'?",
    ),
    (
        "toy{limit=3 lod=on}",
        "pass 'toy' has no option 'lod' (at character 13). Did you mean 'loud'?",
    ),
    ("toy{{}}", "expected an option of pass 'toy' or '}}', got '{' (at character 5)."),
    ("toy{limt=3}", "pass 'toy' has no option 'limt' (at character 5). Did you mean 'limit'?"),
    ("toy{xyzzy=3}", "pass 'toy' has no option 'xyzzy' (at character 5). " + TOY_OPTIONS),
    ("touch{a=3}", "pass 'touch' has no option 'a' (at character 7). It has no options."),
    ("toy{limit=3 limit=4}", "option 'limit' of pass 'toy' is given twice (at character 13)."),
    ("toy{limit}", "expected '=' after option 'limit', got '}' (at character 10)."),
    ("toy{limit 3}", "expected '=' after option 'limit', got '3' (at character 11)."),
    # Values.
    (
        "toy{limit=}",
        "option 'limit' of pass 'toy' wants a whole number, from -5 to 100, got nothing "
        "(at character 11).",
    ),
    (
        "toy{limit=3.5}",
        "option 'limit' of pass 'toy' wants a whole number, from -5 to 100, got '3.5' "
        "(at character 11).",
    ),
    (
        "toy{limit=101}",
        "option 'limit' of pass 'toy' wants a whole number, from -5 to 100, got '101' "
        "(at character 11).",
    ),
    (
        "toy{ratio=-1}",
        "option 'ratio' of pass 'toy' wants a number, at least 0.0, got '-1' (at character 11).",
    ),
    (
        "toy{weight=nan}",
        "option 'weight' of pass 'toy' wants a number, got 'nan' (at character 12).",
    ),
    (
        "toy{weight=1e999}",
        "option 'weight' of pass 'toy' wants a number, got '1e999' (at character 12).",
    ),
    (
        "toy{loud=yes}",
        "option 'loud' of pass 'toy' wants on or off, got 'yes' (at character 10). Did you mean "
        "'on'?",
    ),
    (
        "toy{mode=slow}",
        "option 'mode' of pass 'toy' wants one of fast, small-first, got 'slow' (at character 10).",
    ),
    (
        "toy{mode=fats}",
        "option 'mode' of pass 'toy' has no choice 'fats' (at character 10). Did you mean 'fast'?",
    ),
    (
        "toy{limit=\uff13}",
        "option 'limit' of pass 'toy' wants a whole number, from -5 to 100, got '\uff13' "
        "(at character 11).",
    ),
    *(
        (
            f"toy{{budget={bad}}}",
            "option 'budget' of pass 'toy' wants a size such as 60GiB, a share such as 50%, fit, "
            f"or min, got '{bad}' (at character 12).{hint}",
        )
        for bad, hint in (
            ("fits", " Did you mean 'fit'?"),
            ("MIN", " Did you mean 'min'?"),
            ("101%", " A share is from 0% to 100%."),
            ("-1%", " A share is from 0% to 100%."),
            ("%", ""),
            ("nan%", ""),
            ("on", ""),
            ("\uff15\uff10%", ""),
            ("0", " Did you mean 'min'?"),
            ("60", " 60 of what? Did you mean '60GiB' or '60%'? Bytes are '60B'."),
            ("400", " 400 of what? Did you mean '400GiB'? Bytes are '400B'."),
            ("81559", " 81559 of what? Did you mean '81559MiB'? Bytes are '81559B'."),
            ("1.5", " 1.5 of what? Did you mean '1.5GiB' or '1.5%'?"),
            ("0GiB", " It is at least 1 byte."),
            ("1.5B", " That is no whole number of bytes."),
            ("0.5", " Did you mean '50%'?"),
            ("60G", " Did you mean '60GiB' or '60GB'?"),
            ("60gib", " Did you mean '60GiB'?"),
            ("60Gb", " Did you mean '60GB'?"),
            ("60XB", UNITS),
            ("\uff13GiB", UNITS),
            ("9" * 41, UNITS),
            (f"{2**63}", " That is more than 2**63 - 1."),
            ("99999999999999999999GiB", " That is more than 2**63 - 1."),
        )
    ),
    (
        "toy{size=lots}",
        "option 'size' of pass 'toy' wants a size in bytes such as 4KiB or 60GiB, got 'lots' "
        "(at character 10)." + UNITS,
    ),
    (
        "toy{size=4kb}",
        "option 'size' of pass 'toy' wants a size in bytes such as 4KiB or 60GiB, got '4kb' "
        "(at character 10). Did you mean '4KB'?",
    ),
    (
        "toy{size=0.3B}",
        "option 'size' of pass 'toy' wants a size in bytes such as 4KiB or 60GiB, got '0.3B' "
        "(at character 10). That is no whole number of bytes.",
    ),
    (
        "toy{limit=3  room=1KiB}",
        "option 'room' of pass 'toy' wants a size in bytes such as 4KiB or 60GiB, at least 1MiB, "
        "got '1KiB' (at character 19).",
    ),
]


@pytest.mark.parametrize(("spec", "expected"), DIAGNOSTICS)
def test_diagnostic(spec: str, expected: str) -> None:
    with pytest.raises(SpecError) as caught:
        Pipeline.parse(spec, source="JAX_HLOOM")
    wanted = expected.replace("{passes}", known_passes()).replace("{{", "{").replace("}}", "}")
    assert str(caught.value) == f"JAX_HLOOM={spec!r}: {wanted}"
    # What led to it would bury it.
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    "spec", ["x" * 100_000, "toy{limit=" + "9" * 100_000 + "}", "remat," * 20_000]
)
def test_a_long_spec_is_not_echoed_whole(spec: str) -> None:
    with pytest.raises(SpecError) as caught:
        Pipeline.parse(spec, source="JAX_HLOOM")
    assert len(str(caught.value)) < 1000
    assert f"({len(spec)} characters): " in str(caught.value)


def test_no_diagnostic_is_listed_twice() -> None:
    assert len({spec for spec, _ in DIAGNOSTICS}) == len(DIAGNOSTICS)
