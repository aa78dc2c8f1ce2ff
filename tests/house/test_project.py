"""What people expect of a project: its version, citation, forms and containers agree."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import ROOT

import hloom
from hloom.dumps.select.settings import VARIABLES
from hloom.passes.framework.pipeline import Pipeline

pytestmark = pytest.mark.once

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def test_the_version_stands_in_one_place() -> None:
    told = subprocess.run(
        [sys.executable, "-m", "hloom", "--version"], capture_output=True, text=True, check=True
    )
    assert told.stdout == f"hloom {hloom.__version__}\n"
    assert "version" in PROJECT["project"]["dynamic"]
    [newest, *_] = re.findall(r"^## (.*)", read("CHANGELOG.md"), re.M)
    assert newest.split()[0] == hloom.__version__


def test_the_citation_is_of_this_version() -> None:
    """The fields that version 1.2.0 of the format demands, and those that have to agree."""
    citation = yaml.safe_load(read("CITATION.cff"))
    assert citation["cff-version"] == "1.2.0"
    assert citation["message"]
    assert citation["title"]
    assert all(author.keys() == {"name"} for author in citation["authors"])
    assert [author["name"] for author in citation["authors"]] == [
        author["name"] for author in PROJECT["project"]["authors"]
    ]
    assert citation["version"] == hloom.__version__
    assert citation["license"] == PROJECT["project"]["license"]


def test_pre_commit_has_the_ruff_of_the_extra_dev() -> None:
    [ruff] = [each for each in PROJECT["project"]["optional-dependencies"]["dev"] if "ruff" in each]
    [repository] = yaml.safe_load(read(".pre-commit-config.yaml"))["repos"]
    assert ruff == f"ruff=={repository['rev'].removeprefix('v')}"
    assert {hook["id"] for hook in repository["hooks"]} == {"ruff-check", "ruff-format"}


TEXTS = {"description", "label", "placeholder", "value"}
ATTRIBUTES = {"input": TEXTS, "textarea": TEXTS | {"render"}}


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_an_issue_form_is_one_that_github_takes(form: Path) -> None:
    """By GitHub's syntax for issue forms."""
    found = yaml.safe_load(form.read_text(encoding="utf-8"))
    assert (
        {"name", "description", "body"} <= found.keys() <= {"name", "description", "labels", "body"}
    )
    inputs = [each for each in found["body"] if each["type"] != "markdown"]
    assert len({each["id"] for each in inputs}) == len(inputs) > 0
    for each in inputs:
        assert each.keys() <= {"type", "id", "attributes", "validations"}
        assert each["attributes"]["label"]
        assert each["attributes"].keys() <= ATTRIBUTES[each["type"]]
        assert each.get("validations", {}).keys() <= {"required"}


def test_the_forms_ask_for_what_hloom_writes() -> None:
    texts = {form.stem: form.read_text(encoding="utf-8") for form in FORMS}
    assert set(texts) == {"memory", "wish", "wrong"}
    assert all("hloom doctor --json" in text for text in texts.values())
    for form in ("memory", "wrong"):
        named = set(re.findall(r"HLOOM_DUMP\w+", texts[form]))
        assert named == {"HLOOM_DUMP_TO", "HLOOM_DUMP_ARRAYS"}
        assert named <= set(VARIABLES)


def test_the_dev_container_uses_a_target_of_the_makefile() -> None:
    container = json.loads(read(".devcontainer/devcontainer.json"))
    command, target = container["postCreateCommand"].split()
    assert command == "make"
    assert re.search(rf"^{re.escape(target)}:", read("Makefile"), re.M)
    assert container["image"].startswith("mcr.microsoft.com/devcontainers/python:3.12")


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    """Each instruction of a Dockerfile, with its arguments."""
    lines = [line for line in dockerfile.splitlines() if line and not line.startswith("#")]
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines)]


def test_the_dockerfile_installs_what_is_there() -> None:
    """No container can be made here: what is checked is what does not need one."""
    steps = instructions(read("examples/Dockerfile"))
    assert [name for name, _ in steps] == (
        "FROM RUN COPY RUN FROM ARG WORKDIR COPY RUN COPY ENV CMD".split()
    )
    for name, command in steps:
        if name == "RUN":
            subprocess.run(["bash", "-n", "-c", command], check=True)
    assert all(
        rest.startswith("python:3.12-slim-bookworm") for name, rest in steps if name == "FROM"
    )
    optional = PROJECT["project"]["optional-dependencies"]
    comments = re.findall(r"EXTRAS=(\S+)", read("examples/Dockerfile"))
    assert {extra for each in comments for extra in each.split(",")} == {"demo", "cuda13"}
    assert {"demo", "cuda13"} <= optional.keys()
    left_out = read(".dockerignore").splitlines()
    assert not {"examples", "hloom", "passes", "runtime", "README.md", "LICENSE"} & {*left_out}
    assert {".git", ".venv*", "build"} <= {*left_out}


def test_the_specs_of_the_containers_parse() -> None:
    text = read("examples/Dockerfile") + read("examples/train.slurm")
    specs = [match[2] for match in re.finditer(r"JAX_HLOOM=(['\"])(.*?)\1", text)]
    assert len(specs) == 3
    assert [str(Pipeline.parse(spec)) for spec in specs] == specs


def test_the_script_for_slurm_hands_the_spec_to_every_process(tmp_path: Path) -> None:
    """Run with an `srun` in SLURM's place, which runs the command with the job's variables."""
    (tmp_path / "srun").write_text(
        '#!/bin/sh\n[ "$1" = --export=ALL ] && shift && exec "$@"\n', encoding="utf-8"
    )
    (tmp_path / "srun").chmod(0o755)
    program = (
        "import os, sys; print(os.environ['JAX_HLOOM'], os.environ['HLOOM_DUMP_TO'], *sys.argv)"
    )
    (tmp_path / "train.py").write_text(program, encoding="utf-8")
    path = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", ROOT / "examples" / "train.slurm", "train.py", "--lr", "1 2"],
        cwd=tmp_path,
        env={"PATH": path, "SLURM_JOB_ID": "17"},
        capture_output=True,
        text=True,
        check=True,
    )
    spec = "accumulate{microbatches=8},fit{budget=60GiB}"
    assert done.stdout == f"{spec} dumps-17 train.py --lr 1 2\n"
    options = [line for line in read("examples/train.slurm").splitlines() if "SBATCH" in line]
    assert len(options) == 5
    assert all(re.fullmatch(r"#SBATCH --[a-z-]+=\S+", line) for line in options)
