"""Dataclasses as JSON, and back: their types define which JSON is accepted.

`written` returns values that `json.dumps` takes: for a dataclass an object without the fields that
have their default, for an enum its text, for a tuple a list. `read` takes a result of `json.loads`.
Where that does not match the type, it raises one error, which names the place, the value found and
the value expected. A type may have conditions: `Annotated[int, Condition("a port", is_port)]`.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, TypeVar, Union, overload

_T = TypeVar("_T")
_Reader: TypeAlias = Callable[[Any], Any]

_SHOWN = 60
"""Characters of a value that an error shows."""

_FARTHEST = 1e300
"""The largest absolute value of a number that `read` accepts: a larger one may overflow a float."""


class StructureError(ValueError):
    """JSON does not match the type that it was read as."""

    def __init__(self, text: str, place: str = "") -> None:
        super().__init__(f"{place.lstrip('.') or 'the value'} {text}")
        self._text, self._place = text, place

    @classmethod
    def of(cls, found: object, wanted: str) -> StructureError:
        """Returns the error for a value that is not the expected one."""
        if isinstance(found, list | dict):
            text = f"{'a list' if isinstance(found, list) else 'an object'} of {len(found)}"
        elif isinstance(found, int) and abs(found) >= _FARTHEST:
            text = "a number of very many digits"
        else:
            text = repr(found[:_SHOWN] if isinstance(found, str) else found)
        return cls(f"is {text}, not {wanted}")

    @property
    def depth(self) -> int:
        """Returns the length of the place's name: of a union's types, the one that failed deepest
        was meant."""
        return len(self._place)

    def inside(self, place: str) -> StructureError:
        """Returns this error with the place prefixed by the value's place in its container."""
        return StructureError(self._text, place + self._place)


@dataclass(frozen=True)
class Condition:
    """A condition on the values of a type, with a description of the values that meet it."""

    text: str
    holds: Callable[[Any], bool]


Whole: TypeAlias = Annotated[
    int, Condition("a whole number from 0 to 2^60", lambda n: 0 <= n < 2**60)
]
"""A number of things or of bytes."""

Count: TypeAlias = Annotated[
    int, Condition("a whole number from 1 to 2^60", lambda n: 0 < n < 2**60)
]

Figure: TypeAlias = Annotated[float, Condition("a number below 1e30", lambda x: abs(x) < 1e30)]
"""A figure of a device, in bytes, seconds or operations, with a bound above every real device."""

Amount: TypeAlias = Annotated[float, Condition("a number of 0 or more", lambda x: x >= 0)]

Rate: TypeAlias = Annotated[float, Condition("a number above 0", lambda x: 0 < x < 1e30)]


def written(value: Any) -> Any:
    """Returns the value in a form that `json.dumps` takes; other values stay as they are."""
    if dataclasses.is_dataclass(value):
        fields = {each: getattr(value, each.name) for each in dataclasses.fields(value)}
        return {
            field.name: written(part)
            for field, part in fields.items()
            if field.default != part
            and (field.default_factory is dataclasses.MISSING or field.default_factory() != part)
        }
    if isinstance(value, enum.Enum):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): written(part) for name, part in value.items()}
    return [written(part) for part in value] if isinstance(value, list | tuple) else value


@overload
def read(kind: type[_T], found: object) -> _T: ...


@overload
def read(kind: object, found: object) -> Any: ...


def read(kind: Any, found: object) -> Any:
    """Returns a value of JSON converted to a type. Raises StructureError where it does not match.

    The type is a dataclass, an enum, a tuple, a mapping by texts, which may be a list of pairs, a
    union of these, or a JSON value. A missing field of a dataclass takes its default, and unknown
    fields are ignored.
    """
    return _reader(kind)(found)


@functools.cache
def _reader(kind: Any) -> _Reader:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return functools.partial(_checked, _reader(arguments[0]), arguments[1:])
    if origin in (types.UnionType, Union):
        return functools.partial(_either, tuple(map(_reader, arguments)))
    if origin is tuple:
        readers = tuple(_reader(each) for each in arguments if each is not Ellipsis)
        return functools.partial(_listed, readers, arguments[-1] is Ellipsis)
    if origin in (dict, Mapping):
        return functools.partial(_by_name, _reader(arguments[1]))
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        fields = {each.name: _reader(hints[each.name]) for each in dataclasses.fields(kind)}
        return functools.partial(_object, kind, fields)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return functools.partial(_member, {str(each): each for each in kind})
    return (lambda found: found) if kind is object else functools.partial(_plain, kind)


_PLAIN = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    types.NoneType: "null",
}


def _plain(kind: type, found: Any) -> Any:
    if kind in (int, float):
        is_number = isinstance(found, int | kind) and not isinstance(found, bool)
        if is_number and -_FARTHEST < found < _FARTHEST:
            return kind(found)
    elif isinstance(found, kind):
        return found
    raise StructureError.of(found, _PLAIN[kind])


def _checked(reader: _Reader, conditions: Iterable[Condition], found: Any) -> Any:
    value = reader(found)
    for each in conditions:
        if not each.holds(value):
            raise StructureError.of(found, each.text)
    return value


def _either(readers: Iterable[_Reader], found: Any) -> Any:
    errors = []
    for each in readers:
        try:
            return each(found)
        except StructureError as error:
            errors.append(error)
    raise max(errors, key=lambda error: error.depth)


def _member(members: Mapping[str, enum.Enum], found: Any) -> enum.Enum:
    if isinstance(found, str) and found in members:
        return members[found]
    raise StructureError.of(found, f"one of {', '.join(members)}")


def _listed(readers: tuple[_Reader, ...], is_any_length: bool, found: Any) -> tuple[Any, ...]:
    if not isinstance(found, list | tuple):
        raise StructureError.of(found, "a list")
    every = readers * len(found) if is_any_length else readers
    if len(every) != len(found):
        raise StructureError.of(found, f"a list of {len(every)}")
    return tuple(_at(f"[{n}]", every[n], part) for n, part in enumerate(found))


def _by_name(reader: _Reader, found: Any) -> dict[str, Any]:
    named = found if isinstance(found, dict) else dict(read(_PAIRS, found))
    return {name: _at(f"[{name[:_SHOWN]!r}]", reader, part) for name, part in named.items()}


_PAIRS = tuple[tuple[str, object], ...]


def _object(kind: Any, readers: Mapping[str, _Reader], found: Any) -> Any:
    if not isinstance(found, dict):
        raise StructureError.of(found, f"an object with {', '.join(readers)}")
    given = {name: _at(f".{name}", readers[name], found[name]) for name in readers if name in found}
    missing = dataclasses.MISSING
    for field in dataclasses.fields(kind):
        if field.name not in given and field.default is field.default_factory is missing:
            raise StructureError(f"has no '{field.name}'")
    try:
        return kind(**given)
    except ValueError as error:
        raise StructureError(f"is no {kind.__name__}: {error}") from error


def _at(place: str, reader: _Reader, found: Any) -> Any:
    try:
        return reader(found)
    except StructureError as error:
        raise error.inside(place) from None
