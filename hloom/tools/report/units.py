"""Formats names, types and source lines for people, beside sizes and times."""

from __future__ import annotations

import re
from pathlib import PurePath

from hloom.units import change as change
from hloom.units import flops as flops
from hloom.units import percent as percent
from hloom.units import seconds as seconds
from hloom.units import size as size

_INSTALLED = re.compile(r"^.*/(?:site|dist)-packages/")
_STANDARD_LIBRARY = re.compile(r"^.*/lib/python3\.\d+/")
_TENSOR = re.compile(r"tensor<(?:([0-9?x]+)x)?([a-z]\w*)>")


def lower_first(text: str) -> str:
    """A sentence's beginning as it is within another sentence."""
    return text[:1].lower() + text[1:]


def short_place(line: str) -> str:
    """A source line without the folders that say nothing: "flax/nnx/nn/linear.py:422"."""
    for folders in (_INSTALLED, _STANDARD_LIBRARY):
        inside, found = folders.subn("", line)
        if found:
            return inside
    return PurePath(line).name


def split_name(name: str) -> tuple[str, str]:
    """A name stack of JAX as what leads to an operation, with its "/", and the operation."""
    depth = 0
    for position in range(len(name) - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(name[position], 0)
        if name[position] == "/" and depth == 0:
            return name[: position + 1], name[position + 1 :]
    return "", name


def short_type(text: str) -> str:
    """A type as JAX prints it: "f32[8,256]" for "tensor<8x256xf32>"; others as they are."""
    match = _TENSOR.fullmatch(text)
    if match is None:
        return text
    dimensions = (match[1] or "").replace("x", ",")
    return f"{match[2]}[{dimensions}]"
