"""The house: who may import whom, and what stays out of the way until it is needed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import ROOT

PACKAGES = {
    "hloom": ROOT / "hloom",
    "hloom.passes": ROOT / "passes",
    "hloom.lowering": ROOT / "lowering",
    "hloom.runtime": ROOT / "runtime",
}

MAY_IMPORT = {
    "hloom": {"hloom", "hloom.passes", "hloom.lowering", "hloom.runtime"},
    "hloom.lowering": {"hloom.lowering", "hloom.passes", "hloom.runtime"},
    "hloom.passes": {"hloom.passes"},
    "hloom.runtime": {"hloom.runtime"},
}

IR = "hloom.passes.ir."
"""What is known of the IR itself: marks, operations, meshes, types."""

SOURCES = [(package, file) for package, root in PACKAGES.items() for file in root.rglob("*.py")]


def imported(file: Path) -> Iterator[str]:
    """Every module that the file imports, anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports here are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def package_of(module: str) -> str | None:
    """The one of our packages that the module is in."""
    inside = [name for name in PACKAGES if f"{module}.".startswith(f"{name}.")]
    return max(inside, key=len, default=None)


def is_private_jax(module: str) -> bool:
    return f"{module}.".startswith(("jax._src.", "jaxlib.", "jax.lib.", "jax.interpreters."))


def sources_id(source: tuple[str, Path]) -> str:
    return str(source[1].relative_to(ROOT))


@pytest.fixture(params=SOURCES, ids=sources_id)
def source(request: pytest.FixtureRequest) -> tuple[str, Path]:
    found: tuple[str, Path] = request.param
    return found


def test_the_sources_are_found() -> None:
    assert {package for package, _ in SOURCES} == set(PACKAGES)
    assert len(SOURCES) > 20


def test_imports_run_one_way(source: tuple[str, Path]) -> None:
    package, file = source
    used = {package_of(module) for module in imported(file)} - {None}
    assert used <= MAY_IMPORT[package]


@pytest.mark.parametrize("folder", [PACKAGES["hloom.lowering"], PACKAGES["hloom.passes"] / "ir"])
def test_lowering_and_ir_take_only_ir_from_the_passes(folder: Path) -> None:
    files = list(folder.rglob("*.py"))
    assert len(files) > 5
    for file in files:
        taken = {module for module in imported(file) if package_of(module) == "hloom.passes"}
        assert all(f"{module}.".startswith(IR) for module in taken), file


def test_one_file_touches_private_jax(source: tuple[str, Path]) -> None:
    _, file = source
    private = sorted(filter(is_private_jax, imported(file)))
    assert private == [] or file == ROOT / "hloom" / "_jax" / "__init__.py"


def test_the_private_file_imports_nothing_private_at_its_top() -> None:
    tree = ast.parse((ROOT / "hloom" / "_jax" / "__init__.py").read_text(encoding="utf-8"))
    at_top = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = [alias.name for node in at_top for alias in node.names]
    modules = [node.module or "" for node in at_top if isinstance(node, ast.ImportFrom)]
    assert not any(map(is_private_jax, [*names, *modules]))
    assert any(
        is_private_jax(module) for module in imported(ROOT / "hloom" / "_jax" / "__init__.py")
    )


def test_every_package_says_that_it_is_typed() -> None:
    assert all((root / "py.typed").is_file() for root in PACKAGES.values())


def test_no_catch_all_files() -> None:
    names = {file.stem for _, file in SOURCES}
    assert not names & {"util", "utils", "helper", "helpers", "misc", "common"}


def test_the_checks_above_can_fail(tmp_path: Path) -> None:
    file = tmp_path / "bad.py"
    file.write_text(
        "def f():\n    from jax._src import core\n    import hloom.passes.framework.base\n"
    )
    assert list(imported(file)) == ["jax._src.core", "hloom.passes.framework.base"]
    assert [package_of(module) for module in imported(file)] == [None, "hloom.passes"]
    assert list(map(is_private_jax, imported(file))) == [True, False]
    assert package_of("hloom.tools.passes_doc") == "hloom"
