"""Results that print as their document, and that a notebook shows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict
from typing import Any

from hloom_tools.document.content import Document
from hloom_tools.document.terminal import as_text

_WIDTH = 100
"""The columns of a result that is printed."""


class Shown(ABC):
    """A dataclass that prints as its document; its fields are its JSON."""

    @property
    @abstractmethod
    def document(self) -> Document:
        """Returns the document."""

    def picture(self) -> str:
        """Returns what a notebook shows above the tables, as HTML; empty for nothing."""
        return ""

    def to_json(self) -> dict[str, Any]:
        """Everything, as values that `json.dumps` takes."""
        return asdict(self)  # type: ignore[call-overload]

    def __str__(self) -> str:
        return as_text(self.document, _WIDTH)

    __repr__ = __str__

    def _repr_html_(self) -> str | None:
        """Returns HTML for a notebook; None without jinja2, where it shows the text."""
        try:
            from hloom_tools.document.page import fragment
        except ModuleNotFoundError:
            return None
        return fragment(self.document, self.picture())
