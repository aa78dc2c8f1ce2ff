"""Reads protocol buffers in text form, without their schema.

Only what device descriptions use: scalar fields, nested messages, repeated fields by repetition.
Source: https://protobuf.dev/reference/protobuf/textformat-spec/.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, NoReturn, TypeAlias

Value: TypeAlias = "int | float | str | dict[str, list[Value]]"
Message: TypeAlias = dict[str, list[Value]]

_TOKEN = re.compile(
    r"""(?P<skip>\s+|\#[^\n]*)
      | (?P<string>"(?:[^"\\\n]|\\.)*")
      | (?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
      | (?P<name>[A-Za-z_]\w*)
      | (?P<mark>[{}:,;])""",
    re.VERBOSE,
)


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


def parse(text: str, *, source: str) -> Message:
    """The fields of a message in text form; every field is a list, since any may repeat.

    Enum values and true/false come as the word that stands in the text.

    Args:
      text: the message.
      source: its file name, for errors.

    Raises ValueError("source:line:column: what is wrong").
    """
    return _Parser(text, source).message()


class _Parser:
    def __init__(self, text: str, source: str) -> None:
        self._text = text
        self._source = source
        self._tokens = list(self._tokenize())
        self._next = 0

    def message(self, *, opened: _Token | None = None) -> Message:
        fields: Message = {}
        while True:
            token = self._take()
            if token.kind == "end" and opened is not None:
                self._fail("this '{' has no '}'", opened.at)
            if token.kind == "end" or (token.text == "}" and opened is not None):
                return fields
            if token.kind != "name":
                self._fail(f"expected a field name, got {_show(token)}", token.at)
            fields.setdefault(token.text, []).append(self._value(token))
            if self._peek().text in (",", ";"):
                self._take()

    def _value(self, field: _Token) -> Value:
        has_colon = self._peek().text == ":"
        if has_colon:
            self._take()
        token = self._take()
        if token.text == "{" and token.kind == "mark":
            return self.message(opened=token)
        if not has_colon:
            self._fail(f"expected ':' or '{{' after '{field.text}', got {_show(token)}", token.at)
        if token.kind == "number":
            return float(token.text) if re.search("[.eE]", token.text) else int(token.text)
        if token.kind == "string":
            return re.sub(r"\\(.)", r"\1", token.text[1:-1])
        if token.kind == "name":
            return token.text
        self._fail(f"expected a value for '{field.text}', got {_show(token)}", token.at)

    def _tokenize(self) -> Iterator[_Token]:
        at = 0
        while at < len(self._text):
            match = _TOKEN.match(self._text, at)
            if match is None or match.lastgroup is None:
                self._fail(f"unexpected character {self._text[at]!r}", at)
            if match.lastgroup != "skip":
                yield _Token(match.lastgroup, match[0], at)
            at = match.end()

    def _peek(self) -> _Token:
        if self._next < len(self._tokens):
            return self._tokens[self._next]
        return _Token("end", "", len(self._text))

    def _take(self) -> _Token:
        token = self._peek()
        self._next += 1
        return token

    def _fail(self, what: str, at: int) -> NoReturn:
        line = self._text.count("\n", 0, at) + 1
        column = at - (self._text.rfind("\n", 0, at) + 1) + 1
        raise ValueError(f"{self._source}:{line}:{column}: {what}")


def _show(token: _Token) -> str:
    return "the end of the file" if token.kind == "end" else f"'{token.text}'"
