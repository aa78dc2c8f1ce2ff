"""The option `--target` of every command: names of devices, or paths of descriptions."""

from __future__ import annotations

import argparse
from typing import Any

from hloom import targets

TAKES = "a name that `hloom targets` lists, or the path of a description"


def add_target(
    parser: argparse.ArgumentParser, what: str, *, others: bool = True, **looks: Any
) -> None:
    """Adds the option to a parser.

    Args:
      parser: the parser.
      what: its help text, before what it takes.
      others: whether it takes "cpu" too, the host as it is.
      looks: further arguments of `add_argument`.
    """

    def known(text: str) -> str:
        return _known(text, others=others)

    looks = {"type": known, "metavar": "NAME|FILE", **looks}
    parser.add_argument("--target", help=f"{what}: {TAKES}", **looks)


def several_targets(text: str) -> list[str]:
    """Parses names with commas between."""
    return [_known(name.strip(), others=True) for name in text.split(",") if name.strip()]


def _known(text: str, *, others: bool) -> str:
    """Returns the name or the path of a target, where there is one."""
    try:
        targets.load(text)
    except targets.TargetError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if text == "cpu" and not others:
        raise argparse.ArgumentTypeError("'cpu' is the host as it is, for which no target is named")
    return text
