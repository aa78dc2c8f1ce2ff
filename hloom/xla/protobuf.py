"""Reads Protocol Buffers' wire format without their definitions: fields by number.

Only what XLA's modules and buffer assignments need. Fields that nobody asks for are skipped, so
new ones do no harm.
"""

from __future__ import annotations

_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
_FIXED_BYTES = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}
_MORE = 0x80
_SIGN, _RANGE = 1 << 63, 1 << 64


class WireError(ValueError):
    """Bytes that are no message; the text says where."""


class Message:
    """The fields of one message, by number, each value as often as it occurs."""

    def __init__(self, data: bytes) -> None:
        """Raises WireError where the bytes are no message."""
        self._fields: dict[int, list[int | bytes]] = {}
        position, end = 0, len(data)
        while position < end:
            tag, position = _varint(data, position)
            kind = tag & 7
            value: int | bytes
            if kind == _VARINT:
                value, position = _varint(data, position)
            else:
                if kind == _LENGTH:
                    length, position = _varint(data, position)
                elif kind in _FIXED_BYTES:
                    length = _FIXED_BYTES[kind]
                else:
                    raise WireError(f"a field of unknown kind {kind} at byte {position}")
                if position + length > end:
                    raise WireError(f"a field of {length} bytes ends behind the last byte, {end}")
                value = data[position : position + length]
                position += length
            self._fields.setdefault(tag >> 3, []).append(value)

    def has(self, number: int) -> bool:
        """Whether the field is there; a number that is 0 and an empty text may be left out."""
        return number in self._fields

    def integer(self, number: int) -> int:
        """A number; 0 where the field is not there."""
        found = self.integers(number)
        return found[-1] if found else 0

    def integers(self, number: int) -> list[int]:
        """Repeated numbers, packed or not; signed."""
        found: list[int] = []
        for value in self._fields.get(number, ()):
            if isinstance(value, int):
                found.append(_signed(value))
                continue
            position = 0
            while position < len(value):
                one, position = _varint(value, position)
                found.append(_signed(one))
        return found

    def text(self, number: int) -> str:
        """A text; empty where the field is not there."""
        found = self.texts(number)
        return found[-1] if found else ""

    def texts(self, number: int) -> list[str]:
        """Repeated texts."""
        return [value.decode("utf-8", "replace") for value in self._bytes(number)]

    def message(self, number: int) -> Message:
        """A message inside; an empty one where the field is not there."""
        found = self._bytes(number)
        return Message(found[-1] if found else b"")

    def messages(self, number: int) -> list[Message]:
        """Repeated messages inside."""
        return [Message(value) for value in self._bytes(number)]

    def _bytes(self, number: int) -> list[bytes]:
        values = self._fields.get(number, [])
        found = [value for value in values if isinstance(value, bytes)]
        if len(found) < len(values):
            raise WireError(f"field {number} is a number, not a text or a message")
        return found


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A number of seven bits a byte, and where it ends."""
    value = shift = 0
    try:
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < _MORE:
                return value, position
            shift += 7
    except IndexError:
        raise WireError(f"a number is cut off at the last byte, {len(data)}") from None


def _signed(value: int) -> int:
    return value - _RANGE if value >= _SIGN else value
