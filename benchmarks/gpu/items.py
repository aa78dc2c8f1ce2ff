"""What the parts are made of: items, each to be run in a child process, and how they end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

ROOT = Path(__file__).resolve().parents[2]
"""The repository."""

OK = "ok"
FAILED = "failed"
SKIPPED = "skipped"
OUT_OF_MEMORY = "out of memory"
CRASHED = "crashed"
TIMED_OUT = "timed out"
STOPPED = "stopped"
"""The last: the part's time was over, or somebody ended it. Such an item runs again."""

FINAL = frozenset({OK, FAILED, SKIPPED, OUT_OF_MEMORY, CRASHED, TIMED_OUT})

Entry = dict[str, Any]
"""How an item ended: status, and as there are: result, why, tail, started, seconds, commit."""

Known = Mapping[str, Entry]
"""By item, what is known so far."""


class Skip(Exception):  # noqa: N818 # nothing went wrong
    """Raised by an item that cannot run here; the text says what is missing."""


@dataclass(frozen=True)
class Item:
    """One thing to do.

    Attributes:
      name: what it is called in the results, once in a part.
      function: what the child calls, "module:function", with a function that takes what it
        found so far (benchmarks.gpu.child.Note) and the arguments.
      arguments: values that JSON has.
      limit_s: it is ended after so long.
      needs_s: it is not started with less than this left of the part's time.
      alone: nothing else runs meanwhile, since it takes times.
      environment: variables of its process, beside those of every child.
    """

    name: str
    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    limit_s: float = 120
    needs_s: float = 20
    alone: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """What the parts depend on.

    Attributes:
      dry_run: nothing runs on a GPU, and everything is small.
      fake_driver: in a dry run, the folder of a driver that runs kernels on the CPU; None without.
    """

    dry_run: bool
    fake_driver: Path | None = None


class Part(Protocol):
    """A module with a part's items."""

    def batches(self, known: Known, settings: Settings) -> Iterator[Sequence[Item]]:
        """Items to run; the next batch is asked for when what is known has the one before."""


def result_of(known: Known, name: str) -> Any:
    """What an item that went well gave; None where it did not."""
    entry = known.get(name, {})
    return entry.get("result") if entry.get("status") == OK else None
