"""How long a newcomer's path takes: clone, install, and the commands of the first two pages.

    python -m benchmarks.first_path        (some minutes; downloads JAX)

All happens in a fresh folder and a fresh environment, of the Python that runs this. A command that
names a program of the reader's own, such as train.py, is left out. Times depend on the machine and
on what the installer has at hand.

Writes benchmarks/results/first_path.json and first_path.md.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.common.commits import ROOT, git_commit
from benchmarks.common.measure import Benchmark, Columns, code, figure, section, text

PAGES = ("docs/start.md", "README.md")
_BLOCK = re.compile(r"^```(console|bash)\n(.*?)^```$", re.M | re.S)
_OWN = (" train.py", "[", "make ")
"""Of commands that are left out: the reader's own program, an extra's download, the Makefile."""


def main() -> None:
    """Goes the path, and writes the files."""
    with tempfile.TemporaryDirectory() as folder:
        checkout, environment = Path(folder) / "hloom", Path(folder) / "environment"
        variables = {
            **{name: value for name, value in os.environ.items() if "HLOOM" not in name},
            "PATH": f"{environment / 'bin'}:{os.environ['PATH']}",
            "VIRTUAL_ENV": str(environment),
            "JAX_PLATFORMS": "cpu",
        }
        rows = [_run(f"git clone {ROOT} {checkout}", folder, variables)]
        rows[0]["command"] = "git clone … hloom"
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        for command in dict.fromkeys(commands(checkout)):
            rows.append(_run(command, str(checkout), variables))
            print(rows[-1], flush=True)
    BENCHMARK.write(
        commit=git_commit(),
        cores=os.cpu_count(),
        installer="uv" if shutil.which("uv") else "pip",
        rows=rows,
    )


def commands(checkout: Path) -> Iterator[str]:
    """The commands of the pages that need nothing of the reader's own."""
    for page in PAGES:
        for kind, block in _BLOCK.findall((checkout / page).read_text(encoding="utf-8")):
            lines = block.splitlines()
            typed = [line[2:] for line in lines if line.startswith("$ ")]
            for command in typed if kind == "console" else lines:
                if not any(each in command for each in _OWN):
                    yield command


def _run(command: str, folder: str, variables: dict[str, str]) -> dict[str, Any]:
    """Raises where the command fails."""
    typed = command.replace("pip install", "uv pip install") if shutil.which("uv") else command
    start_s = time.perf_counter()
    done = subprocess.run(
        ["bash", "-c", typed],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    took_s = time.perf_counter() - start_s
    if done.returncode:
        raise SystemExit(f"{command}: {done.returncode}\n{done.stdout}{done.stderr}")
    told = [line for line in done.stderr.splitlines() if line.startswith("hloom: ")]
    return {"command": command, "seconds": took_s, "told": told[-1] if told else ""}


_ROWS: Columns = {
    "command": code("command"),
    "hloom's line": text("told"),
    "seconds": figure("seconds", ".1f"),
}


def _tables(version: str, entry: dict[str, Any]) -> Iterator[str]:
    title = f"## jax {version}, Python {entry['python']}, {entry['cores']} cores"
    yield from section(title, _ROWS, entry["rows"], names=2)
    total_min = sum(row["seconds"] for row in entry["rows"]) / 60
    yield ""
    yield f"{total_min:.1f} minutes in all, installed by {entry['installer']}."


BENCHMARK = Benchmark(
    "first_path",
    "first_path",
    "A newcomer's path, in seconds",
    "Clone, install, and each command of README.md and docs/start.md that needs nothing of the "
    "reader's own, in a fresh environment.",
    _tables,
)


if __name__ == "__main__":
    main()
