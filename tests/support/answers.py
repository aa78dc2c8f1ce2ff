"""Tables of what is given and what is said to it, written as text."""

from __future__ import annotations


def answers(text: str) -> list[tuple[str, str]]:
    """Pairs of "given → said"; indented lines go on with what is said, "# " begins a comment."""
    found: list[tuple[str, str]] = []
    for line in text.splitlines():
        if line.startswith("  "):
            given, said = found.pop()
            found.append((given, f"{said} {line.strip()}".lstrip()))
        elif line and not line.startswith("# "):
            given, _, said = line.partition(" →")
            found.append((given, said.strip()))
    return found
