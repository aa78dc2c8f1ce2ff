"""Files that may come from anybody are opened with care; files are written whole."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hloom import files
from hloom.files import FileError

pytestmark = pytest.mark.once


def reason(read: Callable[[], object]) -> str:
    with pytest.raises(FileError) as refused:
        read()
    return refused.value.reason


def test_only_regular_files_inside_are_read(tmp_path: Path) -> None:
    inside = tmp_path / "dump"
    (inside / "xla").mkdir(parents=True)
    (inside / "xla" / "a.json").write_text("{}")
    (tmp_path / "secret").write_text("[1]")
    (inside / "link").symlink_to(inside / "xla" / "a.json")
    (inside / "way").symlink_to(inside / "xla")
    (inside / "zero").symlink_to("/dev/zero")
    os.mkfifo(inside / "fifo")
    assert files.read_json(inside, "xla/a.json") == {}
    for name, said in {
        "link": "it is a link, and what lies elsewhere is not read",
        "way/a.json": "way is a link, and what lies elsewhere is not read",
        "zero": "it is a link, and what lies elsewhere is not read",
        "fifo": "it is a FIFO",
        "xla": "it is a folder",
        "../secret": "the name leads out of the dump",
        "xla/../../secret": "the name leads out of the dump",
        str(tmp_path / "secret"): "the name leads out of the dump",
        "./xla/a.json": "the name leads out of the dump",
        "a\0b": "the name leads out of the dump",
        "": "the name leads out of the dump",
    }.items():
        assert reason(lambda name=name: files.read_json(inside, name)) == said  # type: ignore[misc]
        assert reason(lambda name=name: files.size_of(inside, name)) == said  # type: ignore[misc]
    with pytest.raises(FileNotFoundError):
        files.read_json(inside, "xla/b.json")
    assert reason(lambda: files.read_given(Path("/dev/zero"))) == "it is a device"
    # What the user names himself may be a link.
    assert files.read_given(inside / "link") == b"{}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000 + "]" * 100_000, "lists and objects stand more than 100 deep in it"),
        ("[" * 102 + "]" * 102, "lists and objects stand more than 100 deep in it"),
        ('{"a": 1e400}', "it cannot be read as JSON"),
        ('{"a": NaN}', "it cannot be read as JSON"),
        ('{"a": ' + "9" * 31 + "}", "it cannot be read as JSON"),
        ('{"a": ' + "9" * 5000 + "}", "it cannot be read as JSON"),
        ("\0", "it cannot be read as JSON"),
        ("", "it cannot be read as JSON"),
    ],
)
def test_json_is_bounded(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "a.json").write_text(text)
    assert reason(lambda: files.read_json(tmp_path, "a.json")) == said


def test_what_plans_have_is_within_the_bounds(tmp_path: Path) -> None:
    value: object = {"flops": 10**29, "seconds": 1e-300, "none": None}
    for _ in range(99):
        value = [value]
    (tmp_path / "a.json").write_text(json.dumps(value))
    assert files.read_json(tmp_path, "a.json") == value
    (tmp_path / "b.json").write_text("3")
    assert files.read_json(tmp_path, "b.json") == 3


def test_sizes_and_text_are_bounded(tmp_path: Path) -> None:
    file = tmp_path / "a.mlir"
    file.touch()
    os.truncate(file, 2**42)
    assert reason(lambda: files.read_text(tmp_path, "a.mlir")).startswith("it has more than 1024 M")
    assert reason(lambda: files.read_json(tmp_path, "a.mlir")).startswith("it has more than 64 MiB")
    file.write_bytes(b"\xff")
    assert reason(lambda: files.read_text(tmp_path, "a.mlir")) == "it is no text in UTF-8"
    file.write_bytes(b"a\0")
    assert reason(lambda: files.read_text(tmp_path, "a.mlir")).startswith("it has NUL bytes")


def test_files_are_written_whole_and_never_through_something(tmp_path: Path) -> None:
    file, victim = tmp_path / "a", tmp_path / "victim"
    files.write_whole(file, b"one")
    files.write_whole(file, b"two")
    assert file.read_bytes() == b"two"
    victim.write_text("mine")
    (tmp_path / "link").symlink_to(victim)
    (tmp_path / "dangling").symlink_to(tmp_path / "new")
    os.mkfifo(tmp_path / "fifo")
    for name, kind in {"link": "a link", "dangling": "a link", "fifo": "a FIFO"}.items():
        said = reason(lambda name=name: files.write_whole(tmp_path / name, b"x"))  # type: ignore[misc]
        assert said == f"it is {kind}, which is not written to or over"
    assert victim.read_text() == "mine"
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "a",
        "dangling",
        "fifo",
        "link",
        "victim",
    ]


def test_a_failure_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a"
    files.write_whole(file, b"one")

    def fail(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        files.write_whole(file, b"two")
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"one"]


def test_folders_are_walked_without_links_however_deep(tmp_path: Path) -> None:
    at = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=at)
        inner = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(at)
    (tmp_path / "loop").symlink_to(tmp_path)
    try:
        names = [name for name, _ in files.walk(tmp_path)]
    finally:
        # Python's own removal recurses, and pytest's would fail on folders as deep as these.
        subprocess.run(["rm", "-rf", str(tmp_path / "d")], check=True, timeout=60)
    assert len(names) == 1501
    assert "loop" in names
