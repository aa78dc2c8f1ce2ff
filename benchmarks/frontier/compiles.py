"""XLA's figures of modules, each module compiled once: what is known is kept in a file."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.extend.mlir import ir

from benchmarks.common.collectives import collectives_by_kind, sent_bytes_by_kind
from benchmarks.common.flops import executed_flops
from benchmarks.common.measure import added_s_of, moves_of
from benchmarks.frontier.points import BudgetPoint, Point
from benchmarks.frontier.yardsticks import Yardstick
from hloom._jax.devices import device_facts, platform_of
from hloom._jax.executables import memory_figures
from hloom._jax.execution import compile_module
from hloom._jax.options import OPTION
from hloom.compiling.compile import compile_program
from hloom.compiling.cross_process import Agreement
from hloom.compiling.request import CompileRequest
from hloom.passes.framework.pipeline import Pipeline
from hloom.passes.ir.clone import clone_module
from hloom.record import CompileRecord
from hloom.targets.devices import placement_of, target_of

ROOT = Path(__file__).resolve().parents[2]


def known_figures(yardstick: Yardstick, version: str) -> Path:
    """Where the figures of modules that a version of XLA compiled for a device are kept."""
    return ROOT / "build" / "frontier" / yardstick.name / f"{version}.json"


@dataclasses.dataclass(frozen=True)
class ModuleFigures:
    """What is known of a module that was compiled.

    Attributes:
      temp_size_in_bytes, argument_size_in_bytes, output_size_in_bytes, alias_size_in_bytes: memory
        by XLA, under XLA's own names.
      product_flops: work in matrix products and convolutions that it runs.
      elementwise_flops: all other work.
      compile_cpu_s: CPU seconds that XLA took.
      product_s: seconds of the products by the roofline of the device; None where it was compiled
        before that was noted.
      collectives, sent_bytes: what XLA's program exchanges in a step, and sends from a device.
    """

    temp_size_in_bytes: int
    argument_size_in_bytes: int
    output_size_in_bytes: int
    alias_size_in_bytes: int
    product_flops: int
    elementwise_flops: int
    compile_cpu_s: float
    collectives: int = 0
    sent_bytes: int = 0
    product_s: float | None = None

    def point(self, label: str) -> Point:
        given = self.argument_size_in_bytes + self.output_size_in_bytes
        return Point(
            label=label,
            temp_bytes=self.temp_size_in_bytes,
            step_bytes=given - self.alias_size_in_bytes + self.temp_size_in_bytes,
            product_flops=self.product_flops,
            elementwise_flops=self.elementwise_flops,
            collectives=self.collectives,
            sent_bytes=self.sent_bytes,
            product_s=self.product_s,
        )


@dataclasses.dataclass(frozen=True)
class KnownExecutable:
    """Stands for an executable that was compiled before: it tells its memory, as one would."""

    figures: ModuleFigures

    def get_compiled_memory_stats(self) -> ModuleFigures:
        return self.figures

    def hlo_modules(self) -> list[Any]:
        """Its text is not kept."""
        return []


class Compiles:
    """Compiles for the device of a sharding, or for the CPU.

    Args:
      sharding: what the arguments of programs are lowered with, or of the same devices.
      file: where the figures of modules are kept.
    """

    def __init__(self, sharding: Any, file: Path) -> None:
        self._devices = (
            jax.devices("cpu")[:1] if sharding is None else list(sharding.mesh.devices.flat)
        )
        backend, self._grid = self._devices[0].client, np.array(self._devices)
        self._process = backend.process_index()
        self._target = target_of(platform_of(backend), device_facts(backend, self._grid))
        self._file = file
        self._known = self._read()

    def figures(self, module: ir.Module, options: Mapping[str, Any] | None = None) -> ModuleFigures:
        """XLA's figures of a module as it is, with more options of XLA."""
        text = str(module.operation.get_asm(enable_debug_info=False))
        text += json.dumps(options, sort_keys=True) if options else ""
        digest = hashlib.sha256(text.encode()).hexdigest()
        if digest not in self._known:
            flops = executed_flops(module, self._target.speed)
            start_s = _cpu_seconds()
            executable = compile_module(
                clone_module(module), self._devices, {OPTION: "off", **(options or {})}
            )
            compile_cpu_s = _cpu_seconds() - start_s
            memory = dataclasses.asdict(memory_figures(executable))
            if None in memory.values():
                raise RuntimeError("XLA tells no memory of what it compiled")
            several = len(self._devices) > 1
            text = executable.hlo_modules()[0].to_string() if several else ""
            self._known[digest] = ModuleFigures(
                temp_size_in_bytes=memory["temp_bytes"],
                argument_size_in_bytes=memory["argument_bytes"],
                output_size_in_bytes=memory["output_bytes"],
                alias_size_in_bytes=memory["alias_bytes"],
                product_flops=flops.products,
                elementwise_flops=flops.elementwise,
                compile_cpu_s=round(compile_cpu_s, 3),
                product_s=flops.product_s,
                collectives=sum(collectives_by_kind(text).values()) if several else 0,
                sent_bytes=sum(sent_bytes_by_kind(text).values()) if several else 0,
            )
            self._write()
        elif self._known[digest].product_s is None:
            product_s = executed_flops(module, self._target.speed).product_s
            self._known[digest] = dataclasses.replace(self._known[digest], product_s=product_s)
            self._write()
        return self._known[digest]

    def _read(self) -> dict[str, ModuleFigures]:
        if not self._file.exists():
            return {}
        found = json.loads(self._file.read_text("utf-8"))
        return {digest: ModuleFigures(**each) for digest, each in found.items()}

    def _write(self) -> None:
        # Another process may have written meanwhile, and this one may end at once.
        self._known = self._read() | self._known
        entries = {digest: dataclasses.asdict(each) for digest, each in self._known.items()}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        written = self._file.with_suffix(f".{os.getpid()}")
        written.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
        written.replace(self._file)

    def under(self, module: ir.Module, spec: str, budget_bytes: int | None) -> BudgetPoint:
        """What a spec gives, by hloom's own loop: plan, compile, plan again.

        Raises PassError where a pass fails: a benchmark does not fall back.
        """
        asked: list[ModuleFigures] = []
        compiling_s = 0.0

        def compile_once(candidate: ir.Module, options: Mapping[str, Any]) -> KnownExecutable:
            nonlocal compiling_s
            start_s = _cpu_seconds()
            asked.append(self.figures(candidate, options))
            compiling_s += _cpu_seconds() - start_s
            return KnownExecutable(asked[-1])

        request = CompileRequest(
            module=module,
            pipeline=Pipeline.parse(spec),
            target=self._target,
            placement=placement_of(self._target, self._grid, process=self._process),
            compile=compile_once,
            agreement=Agreement(module),
            falls_back=False,
        )
        start_s = _cpu_seconds()
        with module.context, ir.Location.unknown():
            record = compile_program(request).record
        planning_s = _cpu_seconds() - start_s - compiling_s
        used, plan = asked[record.best_attempt or 0], _plan(record)
        return BudgetPoint(
            **dataclasses.asdict(used.point(spec)),
            budget_bytes=budget_bytes,
            predictions=[(one.predicted_step_bytes, one.step_bytes) for one in record.attempts],
            best=record.best_attempt,
            complaint=record.complaint and without_place(record.complaint),
            planning_cpu_s=round(planning_s, 3),
            compile_cpu_s=round(sum(each.compile_cpu_s for each in asked), 3),
            added_s=added_s_of(plan),
            moves=moves_of(plan),
        )


def _plan(record: CompileRecord) -> Mapping[str, Any]:
    """The plan that was used; empty where no attempt has one."""
    return {} if record.best_attempt is None else record.attempts[record.best_attempt].plan


def without_place(text: str) -> str:
    """A text with source lines as in the repository, wherever that lies."""
    return text.replace(f"{ROOT}/", "")


def _cpu_seconds() -> float:
    """Of this process and of what it started, such as ptxas."""
    return sum(os.times()[:4])
