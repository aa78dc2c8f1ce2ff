"""The grammar of steps, in `HLOOM_DUMP_STEPS` and in the control file.

3,7          these
100:200:10   as Python slices: from 100, up to and without 200, every tenth
*            every step
none         none for now
next         the next one; in the control file only
"""

from __future__ import annotations

import operator
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from hloom.passes.framework.errors import did_you_mean, echo

# Digits of ASCII, of numbers that a 64-bit integer holds.
_NUMBER = re.compile(r"[0-9]{1,18}")
_SLICE = re.compile(r"([0-9]{0,18}):([0-9]{0,18})(?::([0-9]{0,18}))?")
_WORDS = ("none", "next", "*")
_ENDLESS = sys.maxsize
"""The end of a range that names none: it is above every number that the grammar allows."""

_WANTED = "a step such as 3, a slice such as 100:200:10, '*' for every step, or 'none'"


class SettingsError(ValueError):
    """A setting of dumps is mistaken."""


@dataclass(frozen=True)
class Steps:
    """A set of steps.

    Attributes:
      numbers: single steps.
      stretches: ranges of steps.
      next: the next step, whatever its number is.
    """

    numbers: frozenset[int] = frozenset()
    stretches: tuple[range, ...] = ()
    next: bool = False

    def __contains__(self, step: int) -> bool:
        return step in self.numbers or any(step in stretch for stretch in self.stretches)

    def over_before(self, step: int) -> bool:
        """Whether the set is not empty and all its steps come before `step`."""
        if self.next or any(each.stop > step for each in self.stretches):
            return False
        return bool(self.numbers or self.stretches) and all(each < step for each in self.numbers)

    def missed(self, came: Collection[int]) -> Iterator[str]:
        """Yields the numbers and ranges, as a text names them, of which no step ran."""
        yield from (str(number) for number in sorted(self.numbers - set(came)))
        for stretch in self.stretches:
            if not any(step in stretch for step in came):
                stop = "" if stretch.stop == _ENDLESS else stretch.stop
                is_all = stretch == range(_ENDLESS)
                yield "*" if is_all else f"{stretch.start}:{stop}:{stretch.step}"

    @classmethod
    def parse(cls, text: str, *, source: str, switch: bool = False) -> Steps:
        """Returns the steps that a text names. Raises SettingsError.

        `source` names the text's origin in errors; "next" is valid in the control file only.
        """
        if text.strip() == "none":
            return cls()
        numbers: set[int] = set()
        stretches: list[range] = []
        is_next = False
        for word in (each.strip() for each in text.split(",")):
            if _NUMBER.fullmatch(word):
                numbers.add(int(word))
            elif word == "*":
                stretches.append(range(_ENDLESS))
            elif word == "next" and switch:
                is_next = True
            else:
                stretches.append(_parse_slice(word, f"{source}={echo(text)}"))
        return cls(frozenset(numbers), tuple(stretches), is_next)

    @classmethod
    def of(cls, steps: int | str | Iterable[int], *, source: str) -> Steps:
        """Returns the steps that a program names: one, several, a range, or a text.

        Raises SettingsError.
        """
        if isinstance(steps, str):
            return cls.parse(steps, source=source)
        if isinstance(steps, range) and steps.step > 0 and steps.start >= 0:
            return cls(stretches=(steps,))
        given = list(steps) if isinstance(steps, Iterable) else [steps]
        try:
            numbers = [-1 if isinstance(each, bool) else operator.index(each) for each in given]
        except TypeError:
            numbers = [-1]
        if min(numbers, default=0) < 0:
            raise SettingsError(
                f"{source}={steps!r}: wanted steps as whole numbers from 0 on: one, several, a "
                "range, or a text such as '3,7' or '100:200:10'."
            )
        return cls(frozenset(numbers))


def _parse_slice(word: str, source: str) -> range:
    match = _SLICE.fullmatch(word)
    if match is None:
        hint = "" if word in _WORDS else did_you_mean(word, _WORDS)
        if word == "none":
            hint = " 'none' stands alone."
        elif word == "next":
            hint = " 'next' has a meaning in the switch file only."
        raise SettingsError(f"{source}: wanted {_WANTED}; got {echo(word)}.{hint}")
    start, stop, stride = match.groups()
    bounds = int(start or 0), int(stop) if stop else _ENDLESS, int(stride or 1)
    if bounds[2] == 0:
        raise SettingsError(f"{source}: {word!r} has stride 0; wanted 1 or more.")
    stretch = range(*bounds)
    if not stretch:
        raise SettingsError(f"{source}: {word!r} ends before it begins, so it names no step.")
    return stretch
