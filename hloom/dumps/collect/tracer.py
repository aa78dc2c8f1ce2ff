"""Records the modules that run in a chosen step, with their first run's arguments and results."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import jax

from hloom._jax.flags import step_flag
from hloom._jax.steps import ReplicatedProgram, arguments_of, module_name_of, watch_programs
from hloom.dumps.collect.store import LIVE, LiveModule
from hloom.dumps.format import Missing
from hloom.dumps.select.settings import Settings
from hloom.passes.framework.errors import reason_of
from hloom.policy import guarded

if TYPE_CHECKING:
    from hloom.dumps.collect.arrays import Snapshot


_Result = TypeVar("_Result")


@dataclass(eq=False)
class Execution:
    """The first run of one module in a chosen step.

    Attributes:
      name: the module's name, e.g. "jit_step".
      executable: XLA's executable, kept alive by this reference.
      kept: the module kept at its compile; None without one.
      missing: the missing parts and why: of a module that was not kept, of arrays not copied.
      arguments: host copies of its arguments; None where arrays were not requested.
      results: host copies of its results; None also where it raised.
      error: the exception that the run raised, in one line; None where it raised none.
    """

    name: str
    executable: Any
    kept: LiveModule | None
    missing: tuple[Missing, ...] = ()
    arguments: Snapshot | None = None
    results: Snapshot | None = None
    error: str | None = None


@dataclass(frozen=True, eq=False)
class StepCapture:
    """One chosen step of this process, as the writer takes it.

    Attributes:
      step: its number.
      settings: the settings of the dump.
      started: the start time, UTC.
      executions: the modules that ran in it, in the order of their first runs.
      error: the exception that ended the step, in one line; None where none did.
      missing: the parts that the step lacks as a whole, and why.
    """

    step: int
    settings: Settings
    started: datetime
    executions: tuple[Execution, ...]
    error: str | None = None
    missing: tuple[Missing, ...] = ()


_NOTHING_RAN = Missing(
    "modules",
    "no module that was asked for ran in the step, in the thread that opened it",
    "call the jitted function inside `with hloom.step(n)`, in the same thread; see what "
    "HLOOM_DUMP_MODULES asks for",
)


_open = threading.local()
"""Its attribute `step` is the chosen step that is open in the thread."""


class StepWatch:
    """Watches the programs that run in a chosen step, in the thread that opens it, from now on."""

    def __init__(self, step: int, settings: Settings) -> None:
        self._step = step
        self._settings = settings
        self._started = datetime.now(UTC)
        # By the address of its executable, which this entry keeps alive.
        self._executions: dict[int, Execution] = {}
        install()
        self._flag = step_flag()("watched")
        self._flag.__enter__()
        _open.step = self

    def close(self, error: BaseException | None) -> StepCapture:
        """Ends the watch and returns what ran. `error` is the exception that ended the step, None
        without one."""
        _open.step = None
        self._flag.__exit__(None, None, None)
        return StepCapture(
            step=self._step,
            settings=self._settings,
            started=self._started,
            executions=tuple(self._executions.values()),
            error=None if error is None else reason_of(error),
            missing=() if self._executions else (_NOTHING_RAN,),
        )

    def note(self, name: str, live: LiveModule, key: object) -> None:
        """Notes a step that ran as several programs; of several runs the last one counts."""
        if self._settings.wants_module(name):
            self._executions[id(key)] = Execution(name, None, live)

    def run(self, program: ReplicatedProgram, args: Sequence[Any], call: Callable[[], Any]) -> Any:
        """Runs a program, and notes its first run."""
        execution: Execution | None = None
        with guarded("watching a module of a chosen step"):
            execution = self._new_execution(program, args)
        if execution is None:
            return call()
        try:
            results = call()
        except BaseException as error:
            execution.error = reason_of(error)
            raise
        if self._settings.arrays:
            with guarded("watching a module of a chosen step"):
                execution.results = _copy(execution, "results", results)
        return results

    def _new_execution(self, program: ReplicatedProgram, args: Sequence[Any]) -> Execution | None:
        executable = program.xla_executable
        name = module_name_of(program)
        if id(executable) in self._executions or not self._settings.wants_module(name):
            return None
        kept, missing = LIVE.find(executable)
        execution = Execution(
            name, executable, kept, (*missing, *_not_asked_for(kept, self._settings))
        )
        # Noted before it runs, so that modules are in the order of the calls: copying may run
        # others.
        self._executions[id(executable)] = execution
        if self._settings.arrays:
            execution.arguments = _copy(execution, "arguments", arguments_of(program, args))
        return execution


def _not_asked_for(kept: LiveModule | None, settings: Settings) -> tuple[Missing, ...]:
    """Returns the states that are wanted now and were not when the module was compiled."""
    if kept is None or kept.passes is None:
        return ()
    wanted = {"others"} if settings.passes is None else settings.passes - kept.passes
    if not wanted:
        return ()
    why = f"the module was compiled where the passes chosen were {', '.join(sorted(kept.passes))}"
    remedy = "choose the same passes where the step is compiled and where it is dumped"
    return (Missing(f"states around {', '.join(sorted(wanted))}", why, remedy),)


def _copy(execution: Execution, what: str, values: Sequence[Any]) -> Snapshot | None:
    """Copies arrays to the host; None, and a note of it, where it cannot be done."""
    watched, _open.step = _open.step, None  # programs that copying runs are not part of the step
    try:
        from hloom.dumps.collect.arrays import snapshot

        kept = execution.kept
        processes = None if kept is None else kept.facts.processes
        names = _names(kept, what, len(values))
        # The program's transfer guard is meant for its own transfers.
        with jax.transfer_guard("allow"):
            return snapshot(names, values, what=what, processes=processes)
    except Exception as error:
        why = f"they could not be copied: {reason_of(error)}"
        execution.missing = (*execution.missing, Missing(what, why))
        return None
    finally:
        _open.step = watched


def _names(kept: LiveModule | None, what: str, number: int) -> list[str]:
    known: Sequence[str] = () if kept is None else getattr(kept.facts, what)
    # The module of a program with ordered effects takes and gives tokens before the arrays.
    known = known[max(0, len(known) - number) :]
    return [*known, *(f"{what[:-1]} {index}" for index in range(len(known), number))]


def is_open() -> bool:
    """Whether a chosen step is open in this thread."""
    return getattr(_open, "step", None) is not None


def note(name: str, live: LiveModule, key: object) -> None:
    """Adds a step that ran as several programs to the chosen step that is open in this thread.

    Args:
      name: the name of the divided step.
      live: its facts.
      key: an object that lives as long as the step, the same for each run.
    """
    step: StepWatch | None = getattr(_open, "step", None)
    if step is not None:
        step.note(name, live, key)


def watched_as_here(work: Callable[[], _Result]) -> Callable[[], _Result]:
    """Wraps work for another thread so that it belongs to the chosen step open in this one, if any.

    This thread has to wait for it.
    """
    step: StepWatch | None = getattr(_open, "step", None)
    if step is None:
        return work

    def watched() -> _Result:
        with step_flag()("watched"):
            _open.step = step
            try:
                return work()
            finally:
                _open.step = None

    return watched


def install() -> None:
    """Intercepts, from now on, the runs of programs in chosen steps."""
    watch_programs(_run)


def _run(program: ReplicatedProgram, args: Sequence[Any], call: Callable[[], Any]) -> Any:
    step: StepWatch | None = getattr(_open, "step", None)
    return call() if step is None else step.run(program, args, call)
