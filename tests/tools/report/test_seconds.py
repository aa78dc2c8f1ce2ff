"""The section on where the time of a step goes."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import hloom
from hloom.dumps.read.dump import ModuleDump, open_dump
from hloom.targets import deviceless
from hloom_tools.document.content import Document
from hloom_tools.document.sources import Sources
from hloom_tools.document.terminal import as_text
from hloom_tools.report.seconds import seconds_section

pytestmark = [pytest.mark.h100, pytest.mark.once]
NO_SOURCES = Sources({})


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> ModuleDump:
    deviceless.prepare()
    folder = tmp_path_factory.mktemp("dump")
    x = jax.ShapeDtypeStruct((1024, 1024), jnp.float32, sharding=deviceless.placement("h200"))

    def loss(x: jax.Array) -> jax.Array:
        for _ in range(4):
            x = jnp.tanh(jnp.sin(x @ x))
        return jnp.sum(x)

    with hloom.passes("remat{min_bytes=1KiB}"), hloom.dump(to=folder):
        jax.jit(jax.grad(loss)).lower(x).compile()
    [found] = open_dump(next(folder.iterdir())).modules
    return found


def test_the_seconds_are_by_line_and_by_kind(module: ModuleDump) -> None:
    section = seconds_section(module, NO_SOURCES)
    assert section is not None
    text = as_text(Document("", (section,)), 100)
    assert "Where the time goes: a step takes about" in text
    assert Path(__file__).name in text
    assert "products" in text
    for table in section.tables:
        shares = [row.cells[1].value for row in table.rows]
        assert sum(share for share in shares if isinstance(share, float)) == pytest.approx(1.0)


@pytest.mark.parametrize("entry", [None, {"name": "v5p"}])
def test_without_a_known_device_the_section_is_left_out(
    module: ModuleDump, tmp_path: Path, entry: dict[str, str] | None
) -> None:
    manifest = json.loads((module.folder / "manifest.json").read_text("utf-8"))
    other = None if entry is None else manifest["target"] | entry
    for file in module.folder.rglob("*"):
        if file.is_file():
            copy = tmp_path / "dump" / file.relative_to(module.folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())
    (tmp_path / "dump" / "manifest.json").write_text(json.dumps(manifest | {"target": other}))
    [found] = open_dump(tmp_path / "dump").modules
    assert seconds_section(found, NO_SOURCES) is None
