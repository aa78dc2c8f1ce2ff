"""The grammar of specs, which is MLIR's: `name{option=value option=value},name`.

A spec is "off", alone, or a list of elements between commas; an element is a pass with its options
in braces, or "default", which names the recommended passes. Spaces may separate any two words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NoReturn

from . import registry
from .base import Pass
from .errors import SpecError, did_you_mean, echo
from .feedback import MeasuredPass
from .options import OptionInfo, SpellingError, options_of, unit_hint
from .spellings import Budget, Words, parse_budget

_ON, _OFF = ("1", "on", "true", "yes"), ("0", "false", "no", "none", "null")
"""Words that people write where they mean "default", and "off"."""

_POLICIES = frozenset({"full", "checkpoint", "qkv_proj_offloaded"})
_POLICY_STARTS = (
    "checkpoint_dots", "dots_", "everything_saveable", "minimal", "nothing_saveable",
    "offload_dot", "save_",
)  # fmt: skip
"""Prefixes of the policies of `jax.checkpoint` and MaxText, to recognise one in a spec."""

_WORD = re.compile(r"[^\s{},=]+")
_SPACE = re.compile(r"\s*")
_QUOTE = " In a shell a spec stands in quotes: JAX_HLOOM='fit{budget=60GiB compiles=2}'."


def parse_spec(spec: str, *, source: str) -> tuple[Pass, ...]:
    """Returns the passes that `spec` names, in order; "off" and the empty string name none.

    Args:
      spec: the text.
      source: its origin, for the error, e.g. "JAX_HLOOM".

    Raises SpecError with the place (characters count from 1), the text found and the remedy.
    """
    return _Parser(spec, source).spec()


def print_spec(passes: tuple[Pass, ...]) -> str:
    """Returns the spec of these passes; `parse_spec` gives equal ones back."""
    return ",".join(map(str, passes)) or "off"


class _Parser:
    def __init__(self, text: str, source: str) -> None:
        self._text = text
        self._source = source
        self._at = 0

    def spec(self) -> tuple[Pass, ...]:
        self._skip_space()
        if self._at == len(self._text):
            return ()
        passes: list[Pass] = []
        elements: list[tuple[str, int]] = []
        while True:
            word, at = self._peek_word(), self._at
            elements.append((word, at))
            found = self._element()
            for step in found:
                if step.once and any(type(step) is type(other) for other in passes):
                    self._fail(f"pass '{step.name}' is named twice", at)
                self._check_bounds(step, passes, at)
            passes += found
            if self._at == len(self._text):
                break
            if not self._take(","):
                self._fail_no_comma(word, found)
        self._check_off(elements)
        return tuple(passes)

    def _check_bounds(self, step: Pass, before: list[Pass], at: int) -> None:
        bounded = [each for each in (*before, step) if _is_bounded(each)]
        if _is_bounded(step) and len(bounded) > 1:
            self._fail(
                f"pass '{step.name}' has something to hold, and so has '{bounded[0].name}'",
                at,
                remedy=" One pass of a spec can: leave out the other's budget.",
            )

    def _fail_no_comma(self, name: str, found: tuple[Pass, ...]) -> NoReturn:
        at, rest = self._at, self._rest()
        options = [info.name for step in found for info in options_of(type(step))]
        # "remat budget=60GiB", "remat=60GiB", "remat:budget=60GiB"
        remedy = ""
        if options and (rest in options or rest[:1] in ("=", ":", "(", "[")):
            remedy = f" Options stand in braces: {name}{{{options[0]}=...}}."
        elif rest in (*registry.names(), "default"):
            remedy = f" Passes are joined by ',': {name},{rest}."
        elif rest[:1] in (";", "+", "|", "&"):
            remedy = " Passes are joined by ','."
        self._fail("expected ',' or the end", at, got=rest, remedy=remedy)

    def _check_off(self, elements: list[tuple[str, int]]) -> None:
        for word, at in elements:
            if word == "off" and len(elements) > 1:
                self._fail("'off' stands alone: it switches hloom off", at)

    def _element(self) -> tuple[Pass, ...]:
        at = self._at
        name = self._word()
        if not name:
            self._fail("expected a pass", at, got=self._rest(), remedy=self._known_passes())
        if name in ("off", "default"):
            if self._take("{"):
                self._fail(f"'{name}' takes no options", at)
            return () if name == "off" else parse_spec(registry.DEFAULT, source="default")
        try:
            pass_class = registry.lookup(name)
        except registry.PassLoadError as error:
            self._fail(str(error), at)
        if pass_class is None:
            self._fail(
                f"unknown pass {echo(name)}", at, remedy=_meant(name) or self._known_passes()
            )
        options = self._options(pass_class)
        try:
            return (pass_class(**options),)
        except SpecError as error:
            mistake = str(error).removesuffix(".")
        self._fail(mistake, at)

    def _options(self, pass_class: type[Pass]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        opened_at = self._at
        if not self._take("{"):
            return values
        infos = {info.name: info for info in options_of(pass_class)}
        while not self._take("}"):
            at = self._at
            name = self._word()
            if not name:
                if self._at == len(self._text):
                    self._fail(
                        f"the '{{' of pass '{pass_class.name}' has no '}}'",
                        opened_at,
                        remedy=_QUOTE,
                    )
                remedy = ""
                if self._peek(","):
                    remedy = _parted(values, infos)
                self._fail(
                    f"expected an option of pass '{pass_class.name}' or '}}'",
                    at,
                    got=self._rest(),
                    remedy=remedy,
                )
            if name not in infos:
                self._fail_no_option(pass_class, name, at, infos)
            if name in values:
                self._fail(f"option '{name}' of pass '{pass_class.name}' is given twice", at)
            values[name] = self._value(pass_class, infos[name])
        return values

    def _value(self, pass_class: type[Pass], info: OptionInfo) -> Any:
        if not self._take("="):
            self._fail(f"expected '=' after option '{info.name}'", self._at, got=self._rest())
        at = self._at
        text = self._word()
        try:
            return info.parse(text)
        except SpellingError as error:
            # "1.5 GiB", "50 %": the space parts the number from its unit.
            unit = self._peek_word()
            share = f" Did you mean '{text}%'?" if unit == "%" else ""
            hint = share or (unit and unit_hint(text + unit)) or str(error)
        what = f"option '{info.name}' of pass '{pass_class.name}'"
        if info.choices and hint:
            self._fail(f"{what} has no choice {echo(text)}", at, remedy=hint)
        self._fail(f"{what} wants {info.wants}", at, got=text, remedy=hint)

    def _fail_no_option(
        self, pass_class: type[Pass], name: str, at: int, infos: dict[str, OptionInfo]
    ) -> NoReturn:
        options = f" Options: {', '.join(sorted(infos))}." if infos else " It has no options."
        # "60 GiB": the number was taken for the value.
        number = re.search(r"=\s*([0-9.]+)\s+$", self._text[:at], re.ASCII)
        close = ""
        if number:
            close = f" Did you mean '{number[1]}%'?" if name == "%" else unit_hint(number[1] + name)
        self._fail(
            f"pass '{pass_class.name}' has no option {echo(name)}",
            at,
            remedy=close or did_you_mean(name, infos) or _meant_value(name, infos) or options,
        )

    def _known_passes(self) -> str:
        names = ", ".join(registry.names())
        return (
            f" Passes: {names}; or 'default', or 'off'. `hloom passes` lists them with their "
            "options."
        )

    def _peek_word(self) -> str:
        match = _WORD.match(self._text, self._at)
        return match[0] if match else ""

    def _word(self) -> str:
        word = self._peek_word()
        self._at += len(word)
        self._skip_space()
        return word

    def _peek(self, mark: str) -> bool:
        return self._text.startswith(mark, self._at)

    def _take(self, mark: str) -> bool:
        if not self._peek(mark):
            return False
        self._at += len(mark)
        self._skip_space()
        return True

    def _skip_space(self) -> None:
        match = _SPACE.match(self._text, self._at)
        self._at = match.end() if match else self._at

    def _rest(self) -> str:
        return self._peek_word() or self._text[self._at : self._at + 1]

    def _fail(self, what: str, at: int, *, got: str | None = None, remedy: str = "") -> NoReturn:
        found = "" if got is None else f", got {echo(got)}" if got else ", got nothing"
        raise SpecError(
            f"{self._source}={echo(self._text)}: {what}{found} (at character {at + 1}).{remedy}"
        )


def _is_bounded(step: Pass) -> bool:
    return isinstance(step, MeasuredPass) and step.is_bounded


def _parted(values: dict[str, Any], infos: Mapping[str, OptionInfo]) -> str:
    """Returns the remedy for a comma behind these options of a pass."""
    last = infos[next(reversed(values))] if values else None
    if last is not None and last.type is Words:
        return f" Several {last.name} are joined by '+', options are parted by spaces."
    return " Options are parted by spaces."


def _meant_value(text: str, infos: Mapping[str, OptionInfo]) -> str:
    """Returns the option that a number alone may have been meant for: the first that takes it."""
    if text[:1].isdigit():
        for name, info in infos.items():
            try:
                info.parse(text)
            except SpellingError as error:
                if info.type is Budget and text.isdigit():
                    return str(error)
            else:
                return f" Did you mean '{name}={text}'?"
    return ""


def _meant(name: str) -> str:
    """Returns a hint on what an unknown pass name may have meant."""
    word = name.lower()
    if word in _POLICIES or word.startswith(_POLICY_STARTS):
        return " That is a policy of rematerialization; hloom is told a budget: 'fit{budget=60%}'."
    if word in _ON or word in _OFF:
        return f" Did you mean '{'default' if word in _ON else 'off'}'?"
    known = [*registry.names(), "default", "off"]
    if word[:1] in ("'", '"'):
        return " The quotes are part of the value: leave them out."
    if re.split(r"[;+|&]", word, maxsplit=1)[0] in set(known) - {word}:
        return " Passes are joined by ','."
    with suppress(SpellingError):
        if word[:1].isdigit():
            parse_budget(name)
            return f" Did you mean 'fit{{budget={name}}}'?"
    if any(word.startswith(f"{each}{option}") for each, option in _options_of_all()):
        return f" A shell took its braces.{_QUOTE}"
    start = re.split(r"[(\[:]", word, maxsplit=1)[0]
    if start in known and start != word:
        return f" Options stand in braces: {start}{{option=value}}."
    return f" Did you mean '{word}'?" if word in known else did_you_mean(word, known)


def _options_of_all() -> Iterator[tuple[str, str]]:
    """Yields every pass with each of its options."""
    for cls in registry.all_passes():
        for info in options_of(cls):
            yield cls.name, info.name
