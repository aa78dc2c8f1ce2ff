"""Runs the lit suite, lit_tests/, as one test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

# Of every pass tests/passes has programs from end to end, on both versions.
pytestmark = [pytest.mark.once, pytest.mark.long]

LIT_TESTS = ROOT / "lit_tests"
LIT = [sys.executable, "-c", "from lit.main import main; main()"]


def run_lit(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LIT, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_lit_suite_passes(
    tmp_path: Path, record_property: pytest.RecordProperty, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    done = run_lit(str(LIT_TESTS), "-j2", "-v", "--output", str(report))
    assert report.exists(), done.stdout + done.stderr
    results = {test["name"]: test["code"] for test in json.loads(report.read_text())["tests"]}
    files = sorted(LIT_TESTS.rglob("*.mlir"))
    assert len(results) == len(files) > 0, "lit did not run every file"
    not_passed = {name: code for name, code in results.items() if code != "PASS"}
    assert not not_passed, done.stdout + done.stderr
    assert done.returncode == 0, done.stdout + done.stderr
    record_property("lit_tests", len(results))
    with capsys.disabled():
        print(f"\nlit: {len(results)} tests passed")


@pytest.mark.parametrize("package", ["hloom", "filecheck"])
def test_a_missing_tool_stops_lit(tmp_path: Path, package: str) -> None:
    # A finder that hides one package from the process that runs lit.
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util\n"
        "find = importlib.util.find_spec\n"
        f"hide = lambda name, package=None: None if name == {package!r} else find(name, package)\n"
        "importlib.util.find_spec = hide\n"
    )
    done = run_lit(str(LIT_TESTS), PYTHONPATH=str(tmp_path))
    assert done.returncode != 0
    assert f"has no {package}: " in done.stdout + done.stderr


def test_a_failing_check_fails_the_suite(tmp_path: Path) -> None:
    for name in ("lit.cfg.py", "opt_client.py", "opt_server.py"):
        (tmp_path / name).write_text((LIT_TESTS / name).read_text())
    (tmp_path / "fails.mlir").write_text("// RUN: hloom-opt %s | filecheck %s\n// CHECK: nothing\n")
    (tmp_path / "dies.mlir").write_text("// RUN: hloom-opt %s -p remta\n")
    (tmp_path / "passes.mlir").write_text("// RUN: hloom-opt %s | filecheck %s\n// CHECK: module\n")
    server = tmp_path / "opt_server.py"
    dies = "request['arguments'] == ['--die']"
    server.write_text(
        server.read_text().replace("    try:\n", f"    if {dies}:\n        os.abort()\n    try:\n")
    )
    (tmp_path / "crashes.mlir").write_text("// RUN: not hloom-opt --die\n")
    done = run_lit(str(tmp_path), "-j2", "-v")
    assert done.returncode == 1
    assert "FAIL: hloom :: crashes.mlir" in done.stdout
    assert "PASS: hloom :: passes.mlir" in done.stdout
    assert "FAIL: hloom :: fails.mlir" in done.stdout
    assert "FAIL: hloom :: dies.mlir" in done.stdout
    assert "unknown pass 'remta'" in done.stdout
