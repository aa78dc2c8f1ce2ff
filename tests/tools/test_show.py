"""`hloom show`: what can be told of a dump, in sections, as text, as a page and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from support.commands import Command

import hloom

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dump of a gradient through a scan."""

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return (jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0] ** 2).mean()

    folder = tmp_path_factory.mktemp("show")
    shapes = [jax.ShapeDtypeStruct(each, "float32") for each in ((4, 16, 16), (64, 16))]
    with hloom.dump(to=folder):
        jax.jit(jax.grad(loss)).lower(*shapes).compile(compiler_options={"hloom": "remat"})
    return folder


def test_what_needs_no_compile_is_shown(dump: Path, command: Command) -> None:
    shown = command("show", dump).shown
    for expected in (
        "jit_loss\n",
        "Memory of a step",
        "Whose the peak is",
        "jit_loss on cpu: memory of a step against added time, predicted",
        "Nothing is sent",
    ):
        assert expected in shown
    lines = shown.splitlines()
    assert not [line for line in lines if line != line.rstrip()]
    assert not [line for line in lines if len(line) > 80 and not line.startswith(("  ", "dump:"))]


def test_a_section_is_chosen_by_its_name(dump: Path, command: Command) -> None:
    shown = command("show", dump, "budgets", "--budget", "min").shown
    assert shown == command("budgets", dump, "--budget", "min").shown
    assert "fit{budget=min}" in shown
    assert "Whose the peak is" not in shown
    assert "no section is named 'budget'" in command("show", dump, "budget").complaint
    assert command("show", dump, "budgets", "--budget", "1B").status == 1


def test_a_page_and_json_have_the_same(dump: Path, command: Command, tmp_path: Path) -> None:
    page, numbers = tmp_path / "show.html", tmp_path / "show.json"
    out = command("show", dump, "--html", page, "--json", numbers).shown
    assert f"wrote {page}" in out
    assert "Nothing is sent" in page.read_text()
    told = json.loads(numbers.read_text())
    assert list(told) == ["report", "budgets", "shardings"]
    assert told["budgets"]["module"] == "jit_loss"
    [module] = told["report"]["sections"]
    bars = module["sections"][0]["tables"][0]
    assert [heading for heading, _ in bars["columns"]][1:3] == ["step", "arguments"]
    assert bars["rows"]
    alone = json.loads(command("show", dump, "shardings", "--json", "-").shown)
    assert list(alone) == ["shardings"]


def test_a_module_in_a_file_has_no_report(dump: Path, command: Command) -> None:
    file = dump / "jit_loss-0" / "00-input.mlir"
    assert "Nothing is sent" in command("show", file, "--target", "cpu").shown
    assert command("show", file, "report").status == 1


def test_what_cannot_be_told_says_why(dump: Path, command: Command, tmp_path: Path) -> None:
    assert "does not exist" in command("show", tmp_path / "none").complaint
    without = tmp_path / "jit_loss-0"
    without.mkdir()
    source = dump / "jit_loss-0"
    (without / "manifest.json").write_bytes((source / "manifest.json").read_bytes())
    shown = " ".join(command("show", without).shown.split())
    assert "budgets" in shown
    assert "has no 00-input.mlir" in shown
