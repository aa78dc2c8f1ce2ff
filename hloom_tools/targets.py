"""`hloom targets` lists the devices that hloom can plan for, and describes the one of this
machine."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hloom import targets
from hloom._jax.local_devices import NoDeviceError
from hloom.passes.framework.tables import Kind
from hloom.passes.framework.target import Target
from hloom.passes.framework.text import size
from hloom.show.terminal import PlainConsole
from hloom.targets import deviceless
from hloom_tools.complaint import complain
from hloom_tools.describing import description_of
from hloom_tools.document.content import Document, one_table
from hloom_tools.document.terminal import show
from hloom_tools.output import STANDARD_OUTPUT, OutputError, add_json, write_json, write_told

_HALF = 16
"""The bits of the elements whose product rate is shown."""

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `hloom targets` to a parser."""
    parser.description = (
        "Lists the devices that --target and target= name: their memory, what a step may take of "
        "it, and their speeds. NAME shows one with the source of its figures. --this describes the "
        "device of this machine in files that --target takes."
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="tell all about this one")
    parser.add_argument(
        "--this",
        action="store_true",
        help="write a description of the device here: NAME.toml, and NAME.txtpb of a GPU",
    )
    out: dict[str, Any] = {"type": Path, "default": Path(), "metavar": "DIR"}
    parser.add_argument("-o", "--out", "--to", help="where --this writes (default: here)", **out)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs `hloom targets` and returns its exit status: 0, or 1 for a mistake, reported on
    stderr."""
    console = PlainConsole(soft_wrap=True, quiet=arguments.json == STANDARD_OUTPUT)
    name = arguments.name
    try:
        if arguments.this:
            for line in _describe(name, arguments.out):
                console.say(line, indent="  ")
        elif name is not None:
            for line in _all_about(name):
                console.say(line, indent="  ")
        else:
            show(_overview(), console)
        if arguments.json is not None:
            listed = targets.names() if name is None else (name,)
            write_json(arguments.json, [_values(targets.load(each)) for each in listed])
    except NoDeviceError as error:
        return complain("hloom targets", f"{error}. `hloom doctor` tells what there is.")
    except (OSError, OutputError, targets.TargetError) as error:
        return complain("hloom targets", error)
    return 0


def _values(target: Target) -> dict[str, Any]:
    """Returns a target's figures as values that `json.dumps` takes."""
    values = dataclasses.asdict(target)
    known = target.name in targets.names() and target.platform != "cpu"
    return values | {"device_kinds": list(targets.device_kinds(target.name)) if known else []}


def _overview() -> Document:
    figures = ("memory", "for a step", "products", "memory/s")
    columns = [("name", Kind.CODE), *((name, Kind.COUNT) for name in figures)]
    rows: list[tuple[str, ...]] = []
    for name in targets.names():
        target = targets.load(name)
        if target.memory_bytes is None or target.usable_bytes is None:
            rows.append((name, "", "", "", "", "the host as it is"))
            continue
        kind = targets.device_kinds(name)[0].removeprefix("NVIDIA ")
        rows.append((name, *_figures(target), kind))
    more = "hloom targets NAME: the source of its figures; --this: the device here."
    share = targets.share_of_gpus(map(targets.load, targets.names()))
    return one_table("", [*columns, ("device", Kind.TEXT)], rows, [share, more])


def _figures(target: Target) -> tuple[str, ...]:
    assert target.memory_bytes is not None
    assert target.usable_bytes is not None
    return (
        size(target.memory_bytes),
        size(target.usable_bytes),
        f"{target.speed.matrix_rate(_HALF) / 1e12:.0f} TFLOP/s",
        f"{target.speed.bytes_per_s / 1e12:.2f} TB/s",
    )


def _all_about(name: str) -> Iterator[str]:
    target = targets.load(name)
    if name == "cpu":
        yield "cpu: the host as it is, which has no description. A step may take 80 % of memory."
        return
    memory, usable, products, per_s = _figures(target)
    kinds = " or ".join(targets.device_kinds(name)) if name in targets.names() else target.name
    yield f"{target.name}: {kinds}"
    yield f"  memory {memory}, for a step {usable}"
    yield f"  products of 16 bits {products}, memory {per_s}"
    yield f"  {targets.limit_reason(target)}"
    if name in targets.names():
        yield f"  {deviceless.source(name)}"


def _describe(name: str | None, folder: Path) -> Iterator[str]:
    from hloom._jax.devices import device_facts, platform_of
    from hloom._jax.local_devices import described_to_xla, local_devices
    from hloom.targets.devices import target_of

    devices = local_devices()
    backend = devices[0].client
    platform, [facts] = platform_of(backend), device_facts(backend, np.asarray(devices[:1]))
    found = description_of(platform, facts, described_to_xla(devices[:1]))
    known = target_of(platform, [facts]).name
    if known in targets.names():
        yield f"{facts.kind} is the target '{known}' already."
    name = (name or found.name).removesuffix(".toml")
    if not _NAME.fullmatch(name):
        raise targets.TargetError(
            f"a target's name is letters, digits, '_', '-' and '.', got {name!r}. --out DIR says "
            "where it is written."
        )
    contents = {".toml": found.figures, ".txtpb": found.text}
    for ending, content in contents.items():
        if content is not None:
            yield write_told(folder / f"{name}{ending}", content.encode())
    yield f"Use it: hloom fits PROGRAM --target {folder.resolve() / f'{name}.toml'}"
