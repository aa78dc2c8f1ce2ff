"""The house: who may import whom, what stays out of the way, and what is known in one place."""

from __future__ import annotations

import ast
import graphlib
import itertools
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from support import ROOT

from benchmarks.common.imports import (
    LAZY,
    MODULES,
    PACKAGES,
    SATELLITES,
    SOURCES,
    core,
    holding,
    imported,
    imports_of,
    module_of,
    nodes_of,
    package_of,
    passes_apart,
    room_in_passes,
)
from hloom import api
from hloom.passes.framework import registry

MAY_IMPORT = {
    "hloom": {"hloom", "hloom.passes", "hloom.lowering", "hloom.runtime"},
    "hloom_steps": {"hloom_steps", "hloom", "hloom.passes"},
    "hloom_tools": {
        "hloom_tools",
        "hloom_steps",
        "hloom",
        "hloom.passes",
        "hloom.lowering",
        "hloom.runtime",
    },
    "hloom.lowering": {"hloom.lowering", "hloom.passes", "hloom.runtime"},
    "hloom.passes": {"hloom.passes"},
    "hloom.runtime": {"hloom.runtime"},
}

PRIVATE = ROOT / "hloom" / "_jax"

IR = "hloom.passes.ir."
"""What is known of the IR itself: marks, operations, meshes, types."""

FORBIDDEN = {
    "hloom.compiling": {"hloom.dumps"},
    "hloom.policy": {"hloom.dumps"},
    "hloom.xla": {"hloom.dumps", "hloom.compiling"},
}
"""What a room of hloom may not import, TYPE_CHECKING included."""

MOST_NAMES = 245
"""The names in `hloom.api`. The number may only fall."""

LAYERS = (("ir",), ("framework",), ("analysis",), ("budgeted", "recompute", "phase_loops"))
"""Rooms of passes/, ground floor first: each imports only what stands before it."""

APART = {
    *("accumulate", "accumulate_in_place", "barriers", "capture", "late_gather", "overlap"),
    *("pipeline", "undo_checkpoint", "unroll"),
}
"""Passes that neither a jit with `fit` nor another part of hloom imports."""

PLANNED_WITH = {"planner": {"fit", "remat"}}
"""Who alone imports a room of passes/ at the top."""


def room_of(module: str) -> str | None:
    """The package, or the folder or file in hloom/, that the module or a name in it is in."""
    package = package_of(module)
    if package != "hloom":
        return package
    first = module.removeprefix("hloom").lstrip(".").partition(".")[0]
    place = ROOT / "hloom" / (first or "__init__")
    known = first and (place.is_dir() or place.with_suffix(".py").is_file())
    return f"hloom.{first}" if known else "hloom"


def rooms() -> dict[str, set[str]]:
    """What each room imports of the others."""
    found: dict[str, set[str]] = {}
    for _, file in SOURCES:
        room = room_of(module_of(file).removesuffix(".__init__"))
        assert room is not None
        read = imported(file)
        if file in LAZY:
            read = frozenset(module for module in read if package_of(module) not in SATELLITES)
        used = {other for other in map(room_of, read) if other is not None}
        found.setdefault(room, set()).update(used - {room})
    return found


def rooms_in_passes() -> dict[str, set[str]]:
    """What each room of passes/ imports of the others."""
    found: dict[str, set[str]] = {}
    for package, file in SOURCES:
        room = room_in_passes(module_of(file)) if package == "hloom.passes" else None
        if room is not None:
            used = {other for other in map(room_in_passes, imported(file)) if other is not None}
            found.setdefault(room, set()).update(used - {room})
    return found


def unused_modules() -> set[str]:
    """The modules that no other one imports, nor names in a string to import it by.

    Packages are left out, which what is in them makes, and what Python runs.
    """
    used: set[str] = set()
    for module, file in MODULES.items():
        if module == api.__name__:
            continue
        strings = (
            node.value.partition(":")[0]
            for node in nodes_of(file)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        )
        named = {name for name in strings if name in MODULES}
        used |= {*map(holding, imported(file)), *named} - {module}
    files = (module for module, file in MODULES.items() if not file.stem.startswith("__"))
    return set(files) - used - {api.__name__}


def functions_of(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The functions of a file and its classes' methods, but for those that a decorator takes."""
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef):
            for each in node.body:
                if isinstance(each, ast.FunctionDef) and not each.decorator_list:
                    yield each.name


def read_in(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The names that code reads, in strings too, there perhaps behind a module and a colon."""
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.rpartition(":")[2]


def is_private_jax(module: str) -> bool:
    return f"{module}.".startswith(("jax._src.", "jaxlib.", "jax.lib.", "jax.interpreters."))


def test_the_sources_are_found() -> None:
    assert {package for package, _ in SOURCES} == set(PACKAGES)
    assert len(SOURCES) > 20


def test_imports_run_one_way() -> None:
    for package, file in SOURCES:
        used = {package_of(module) for module in imported(file)} - {None}
        assert used <= MAY_IMPORT[package] | (SATELLITES if file in LAZY else set()), file


def taken(file: Path) -> Iterator[str]:
    """The names of hloom that a file of a package above it imports."""
    for node in nodes_of(file):
        if isinstance(node, ast.ImportFrom) and package_of(node.module or "") not in {
            None,
            *SATELLITES,
        }:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_packages_above_take_what_the_list_has() -> None:
    listed = [f"{module}.{name}" for module, names in api.NAMES.items() for name in names.split()]
    above = [file for package, file in SOURCES if package in SATELLITES]
    assert sorted(listed) == sorted({name for file in above for name in taken(file)})
    assert len(listed) == MOST_NAMES


@pytest.mark.parametrize("folder", [PACKAGES["hloom.lowering"], PACKAGES["hloom.passes"] / "ir"])
def test_lowering_and_ir_take_only_ir_from_the_passes(folder: Path) -> None:
    files = list(folder.rglob("*.py"))
    assert len(files) > 5
    for file in files:
        taken = {module for module in imported(file) if package_of(module) == "hloom.passes"}
        assert all(f"{module}.".startswith(IR) for module in taken), file


def test_rooms_that_stand_alone() -> None:
    graph = rooms()
    for room, forbidden in FORBIDDEN.items():
        assert not graph[room] & forbidden, room


def test_rooms_import_each_other_one_way() -> None:
    graph = rooms()
    order = list(graphlib.TopologicalSorter(graph).static_order())  # CycleError tells a cycle
    assert set(order) == set(graph)
    assert len(graph) > 10


def test_no_module_imports_itself_through_others() -> None:
    """Neither for type checkers nor inside of a function."""
    graph = {
        module: set(map(holding, imported(file))) - {module, ""} for module, file in MODULES.items()
    }
    assert len(graph) > 300
    graphlib.TopologicalSorter(graph).prepare()  # CycleError tells a cycle


def test_no_module_is_there_for_tests_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not unused_modules()
    monkeypatch.setitem(MODULES, "hloom.passes.nobodys", PACKAGES["hloom.passes"] / "cse.py")
    assert unused_modules() == {"hloom.passes.nobodys"}


CALLED_BY_LIBRARIES = {"show_cursor", "tree_flatten_with_keys"}


@pytest.mark.once
def test_no_function_is_there_for_tests_alone() -> None:
    """Benchmarks measure some that the product does not call."""
    product = [file for _, file in SOURCES]
    readers = [*product, *(ROOT / "benchmarks").rglob("*.py")]
    read = {name for file in readers for name in read_in(nodes_of(file))}
    made = {name for file in product for name in functions_of(nodes_of(file))}
    assert {name for name in made - read if not name.startswith("__")} == CALLED_BY_LIBRARIES
    code = "def f():\n    return f, x.g, 'h', 'x:j'\nclass C:\n    def i(self): ...\ndef j(): ...\n"
    nodes = [*ast.walk(ast.parse(code))]
    assert {*functions_of(nodes)} - {*read_in(nodes)} == {"i"}


def test_layers_of_the_passes_import_one_way() -> None:
    graph = rooms_in_passes()
    graphlib.TopologicalSorter(graph).prepare()  # CycleError tells a cycle
    below: set[str] = set()
    for layer in LAYERS:
        for room in layer:
            assert graph[room] <= below, room
        below.update(layer)
    for room, importers in PLANNED_WITH.items():
        assert {other for other in graph if room in graph[other]} == importers, room


def test_the_core_imports_no_pass_that_stands_apart() -> None:
    assert set(passes_apart()) == APART
    assert {"hloom.compiling.compile", "hloom.passes.planner.loop"} <= core()
    graph = rooms_in_passes()
    assert {room for room in graph if graph[room] & APART} <= APART


def test_inside_of_a_package_imports_are_relative() -> None:
    """So that a reader, and a tool that reads the tree, finds the file: hloom/passes is a link."""
    for package, file in SOURCES:
        if package in ("hloom.passes", "hloom.lowering", "hloom.runtime"):
            absolute = [
                node.module
                for node in nodes_of(file)
                if isinstance(node, ast.ImportFrom) and not node.level and node.module
            ]
            assert not [module for module in absolute if package_of(module) == package], file


def test_the_graph_of_the_rooms_has_every_import() -> None:
    graph = rooms()
    assert "hloom.passes" in graph["hloom.record"]  # for type checkers alone
    assert "hloom.compiling" in graph["hloom.plugin"]  # inside of a function
    assert {"hloom._jax", "hloom.dumps"} <= set(itertools.chain(*graph.values()))
    assert room_of("hloom.__version__") == room_of("hloom") == "hloom"
    assert room_of("hloom_tools.opt.job.Job") == "hloom_tools"
    assert room_of("jax.numpy") is None
    with pytest.raises(graphlib.CycleError):
        graphlib.TopologicalSorter({"a": {"b"}, "b": {"a"}}).prepare()


def test_one_folder_touches_private_jax() -> None:
    for _, file in SOURCES:
        private = sorted(filter(is_private_jax, imported(file)))
        assert private == [] or file.parent == PRIVATE, file


def test_private_jax_is_imported_inside_of_functions() -> None:
    files = sorted(PRIVATE.glob("*.py"))
    for file in files:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        inside = {
            id(node)
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef)
            for node in ast.walk(function)
        }
        outside = [node for node in ast.walk(tree) if id(node) not in inside]
        assert not any(map(is_private_jax, imports_of(outside, module_of(file)))), file
    assert any(is_private_jax(module) for file in files for module in imported(file))


def test_every_package_says_that_it_is_typed() -> None:
    assert all((root / "py.typed").is_file() for root in PACKAGES.values())


NAMED_BY_RULE = {"Pipeline"}
"""The class of the pass `pipeline`, beside a pipeline of passes."""


def test_a_public_class_name_stands_once() -> None:
    found = Counter(
        node.name
        for _, file in SOURCES
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, count in found.items() if count > 1} == NAMED_BY_RULE


def test_no_catch_all_files() -> None:
    names = {file.stem for _, file in SOURCES}
    assert not names & {"util", "utils", "helper", "helpers", "misc", "common"}


def test_the_checks_above_can_fail() -> None:
    code = (
        "def f():\n    from jax._src import core\n    import hloom.passes.framework.base\n"
        "    from . import walk\n    from ...analysis.cost import seconds\n"
    )
    found = list(imports_of(ast.walk(ast.parse(code)), "hloom.passes.recompute.block.plan"))
    assert found == [
        "jax._src.core",
        "hloom.passes.framework.base",
        "hloom.passes.recompute.block.walk",
        "hloom.passes.analysis.cost.seconds",
    ]
    assert [package_of(module) for module in found] == [None, *["hloom.passes"] * 3]
    assert list(map(is_private_jax, found)) == [True, False, False, False]
    assert [room_in_passes(module) for module in found[1:]] == [
        "framework",
        "recompute",
        "analysis",
    ]
    assert package_of("hloom_tools.passes_doc") == "hloom_tools"


MOST_LINES = 600


def listed() -> list[Path]:
    """The files of the repository that git knows."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for path in map(ROOT.joinpath, names.splitlines()) if path.is_file()]


@pytest.mark.once
def test_a_file_can_be_read_in_one_sitting() -> None:
    code = [path for path in listed() if path.suffix in (".py", ".cc", ".h", ".cu", ".cuh")]
    assert len(code) > 300
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in code}
    assert {str(path) for path, count in lines.items() if count > MOST_LINES} == set()


def test_every_helper_of_the_tests_is_used() -> None:
    support = ROOT / "tests" / "support"
    texts = {file: file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("*.py")}
    helpers = [file for file in support.rglob("*.py") if file.name != "__init__.py"]
    assert len(helpers) > 40
    for helper in helpers:
        folder = ".".join(helper.parent.relative_to(support.parent).parts)
        named = re.compile(
            rf"\b{re.escape(folder)}(\.{helper.stem}\b| import [^)]*\b{helper.stem}\b)"
            rf"|\b{helper.stem}\.py\b"  # run as a process of its own
        )
        assert any(named.search(text) for file, text in texts.items() if file != helper), helper


def test_one_module_alone_erases_operations() -> None:
    """It checks before that nothing reads them: the bindings free what is still read."""
    erasing = {
        str(file.relative_to(ROOT))
        for _, file in SOURCES
        for node in nodes_of(file)
        if isinstance(node, ast.Attribute) and node.attr in ("erase", "erase_argument")
    }
    assert erasing == {"passes/ir/erase.py"}


def test_one_module_alone_moves_operations() -> None:
    """It checks before that none is moved past what it reads, or what reads it."""
    moving = {
        str(file.relative_to(ROOT))
        for _, file in SOURCES
        for node in nodes_of(file)
        if isinstance(node, ast.Attribute) and node.attr in ("move_before", "move_after")
        if not (isinstance(node.value, ast.Name) and node.value.id == "moves")
    }
    assert moving == {"passes/ir/moves.py"}


KNOWS_NO_PASS = (ROOT / "hloom_tools", ROOT / "hloom" / "dumps")
"""They show what any pass's plan states, third parties' too."""


def _specs_in(text: str) -> list[str]:
    """The strings of a source that spell registered passes, docstrings left out."""
    tree = ast.parse(text)
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    spec = re.compile(rf"({'|'.join(map(re.escape, registry.names()))})(\{{.*\}}|,.*)?")
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in said
        and spec.fullmatch(node.value)
    ]


def test_tools_and_dumps_know_no_pass_by_name() -> None:
    assert _specs_in("plan('chunk')") == ["chunk"]
    assert _specs_in("run('inline,cse'); run('fit{budget=50%}')") == [
        "inline,cse",
        "fit{budget=50%}",
    ]
    found = [
        f"{file.relative_to(ROOT)}: {spec}"
        for folder in KNOWS_NO_PASS
        for file in sorted(folder.rglob("*.py"))
        if file != ROOT / "hloom_tools" / "cli.py"  # commands have names, too
        for spec in _specs_in(file.read_text(encoding="utf-8"))
    ]
    assert found == []
    templates = sorted((ROOT / "hloom_tools" / "document" / "templates").iterdir())
    quoted = re.compile(rf"[\"']({'|'.join(map(re.escape, registry.names()))})[\"']")
    assert [file.name for file in templates if quoted.search(file.read_text("utf-8"))] == []


FOLDERS = ("hloom", "hloom_steps", "hloom_tools", "lowering", "passes", "runtime")

ONCE = {
    r"\bDotDimensionNumbers\(": {"passes/ir/products.py"},
    r"\bRaggedDotDimensionNumbers\(": {"passes/ir/products.py"},
    r"\bdimension_shardings\b": {"passes/ir/shardings.py"},
    r"sdy-propagation-pipeline": {"passes/analysis/shardings/propagation.py"},
}
"""The files that may have a pattern: they read which axes of a product are which, what a sharding
says, and where Shardy places values."""


@pytest.mark.parametrize("pattern", ONCE)
def test_what_is_known_in_one_place(pattern: str) -> None:
    found = {
        str(file.relative_to(ROOT))
        for folder in FOLDERS
        for file in (ROOT / folder).rglob("*.py")
        if re.search(pattern, file.read_text(encoding="utf-8"))
    }
    assert found == ONCE[pattern]
