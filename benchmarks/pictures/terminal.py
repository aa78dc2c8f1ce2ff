"""The picture of a terminal in docs/records.md: a training script that never mentions hloom.

    python -m benchmarks.pictures.terminal      (needs the extras demo and test)

Runs examples/flax_train.py under a memory budget in a terminal of 80 columns, and writes
docs/terminal.svg: what the terminal shows while the program is compiled, and at the end.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
from pathlib import Path

import pyte
from rich.console import Console
from rich.rule import Rule
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).parents[2]
OUT = ROOT / "docs" / "terminal.svg"
SCRIPT = "examples/flax_train.py"
SPEC = "fit{budget=60%}"

_COLUMNS, _LINES = 80, 40
_LIVE = "attempt 2 of 6, predicted"
"""What the picture shows while the program is compiled."""

_FONT = re.compile(r"@font-face \{.*?\}", re.DOTALL)
"""The fonts that rich's pictures load from elsewhere: a reader's own does."""


def main() -> None:
    """Writes the picture."""
    during, after = run_in_terminal()
    console = Console(record=True, width=_COLUMNS, file=open(os.devnull, "w"))  # noqa: SIM115
    command = Text.assemble(("$ ", "bold green"), f"JAX_HLOOM='{SPEC}' python {SCRIPT}")
    for title, lines in (("while it compiles", during), ("at the end", after)):
        console.print(Rule(title, style="dim"))
        console.print(command)
        style, is_wrapped = "", False
        for line in lines:
            if not is_wrapped:
                style = "cyan" if line.startswith("hloom: ") else ""
            is_wrapped = len(line) == _COLUMNS
            console.print(Text(line, style=style), soft_wrap=True)
    picture = console.export_svg(title="", theme=MONOKAI, unique_id="hloom")
    OUT.write_text(_FONT.sub("", picture), encoding="utf-8")
    print(OUT.relative_to(ROOT))


def run_in_terminal() -> tuple[list[str], list[str]]:
    """What the terminal shows when the second attempt is compiled, and at the end."""
    process, primary = pty.fork()
    if process == 0:
        # None of the machine's own settings shows in the picture.
        for name in [name for name in os.environ if name.startswith(("HLOOM_", "JAX_"))]:
            del os.environ[name]
        os.environ.update(TERM="xterm-256color", JAX_HLOOM=SPEC, JAX_PLATFORMS="cpu")
        os.chdir(ROOT)
        os.execv(sys.executable, [sys.executable, SCRIPT])
    fcntl.ioctl(primary, termios.TIOCSWINSZ, struct.pack("HHHH", _LINES, _COLUMNS, 0, 0))
    screen = pyte.Screen(_COLUMNS, _LINES)
    stream = pyte.ByteStream(screen)
    during: list[str] = []
    while written := _read(primary):
        stream.feed(written)
        shown = _shown(screen)
        if any(_LIVE in line for line in shown):
            during = shown
    _, status = os.waitpid(process, 0)
    if os.waitstatus_to_exitcode(status) or not during:
        raise RuntimeError("\n".join([f"{SCRIPT} did not run as the picture wants:", *shown]))
    return during, _shown(screen)


def _read(terminal: int) -> bytes:
    """What comes next; nothing at the end, which Linux tells by an error."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def _shown(screen: pyte.Screen) -> list[str]:
    lines = [line.rstrip() for line in screen.display]
    while lines and not lines[-1]:
        lines.pop()
    return lines


if __name__ == "__main__":
    main()
