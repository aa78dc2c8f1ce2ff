"""The base class of passes: a frozen dataclass that plans, then applies."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar, runtime_checkable

from jax.extend.mlir import ir

from .errors import SpecError
from .options import options_of
from .structure import written
from .tables import Fact, Kind, Left, Statement, Table, left_table
from .target import Target, called


class Plan(Protocol):
    """The decisions of a pass for one module, which are read, printed, tested, then applied."""

    @property
    def empty(self) -> bool:
        """Whether the plan does nothing: `apply` would leave every byte of the module as it is."""

    def summary(self) -> str:
        """Returns one line for people."""

    def to_json(self) -> dict[str, object]:
        """Returns the decisions as values that `json.dumps` takes; the same in every process."""


@runtime_checkable
class PlanWithEffect(Plan, Protocol):
    """A plan that states its effect in fewer words than its summary has."""

    def effect(self) -> str:
        """Returns the plan's effect on the program, e.g. "103 operations recomputed"."""


@runtime_checkable
class RefusingPlan(Plan, Protocol):
    """A plan that may leave a program as it is although the spec asks for more."""

    @property
    def refusal(self) -> str:
        """Returns what is not done and why, in sentences for the user; empty where nothing is."""


@runtime_checkable
class WarningPlan(Plan, Protocol):
    """A plan that is applied, and may have a flaw that the user should know of."""

    @property
    def warning(self) -> str:
        """Returns the flaw, in sentences for the user; empty where none exists."""


@dataclasses.dataclass(frozen=True)
class Decision:
    """One change of a plan, which the plan could leave out.

    Attributes:
      id: identifies it within the plan; for equal plans the same in every process.
      description: one line for people, with names and source lines.
    """

    id: str
    description: str


@runtime_checkable
class DivisiblePlan(Plan, Protocol):
    """A plan of many decisions, any of which can be left out: the rest is right without it."""

    def decisions(self) -> tuple[Decision, ...]:
        """Returns all decisions, in the order in which to add them one by one.

        A decision that uses a value of another decision comes before the other: as long as the
        other is left out it uses the program's own value. So where results become wrong with one
        more decision, that decision is the wrong one.
        """

    def restricted_to(self, ids: Collection[str]) -> Plan:
        """Returns the plan with these decisions alone, for the same module, not edited yet."""


@dataclasses.dataclass(frozen=True)
class PlanBase(ABC):
    """A plan that states facts and tables, from which its summary and its JSON follow."""

    @property
    @abstractmethod
    def empty(self) -> bool:
        """Whether the plan does nothing: `apply` would leave every byte of the module as it is."""

    def facts(self) -> tuple[Fact, ...]:
        """Returns the figures of the plan, the most important first."""
        return ()

    def tables(self) -> tuple[Table, ...]:
        """Returns the tables of what was decided, then of what was left, with reasons if any."""
        return ()

    def summary(self) -> str:
        """Returns one line for people: the facts, unless the plan has words of its own."""
        return ", ".join(map(str, self.facts()))

    def effect(self) -> str:
        """Returns the effect on the program in few words: the summary, where that is short."""
        return self.summary()

    def to_json(self) -> dict[str, object]:
        """Returns the facts and tables, and a measured pass's record under "record"."""
        found: dict[str, object] = Statement(self.facts(), self.tables()).to_json()
        record = getattr(self, "record", None)
        return found if record is None else found | {"record": written(record)}


class Decided(Protocol):
    """One decision of a plan that makes many."""

    @property
    def id(self) -> str:
        """Returns an identifier within the plan; for equal plans the same in every process."""

    @property
    def description(self) -> str:
        """Returns one line for people, with names and source lines."""


_Decided = TypeVar("_Decided", bound=Decided)


@dataclasses.dataclass(frozen=True)
class ListPlan(PlanBase, Generic[_Decided]):
    """A plan of independent decisions, any of which can be left out.

    Attributes:
      decided: the changes, in the order of the module.
      left: the parts that were examined and stay as they are.
    """

    decided: tuple[_Decided, ...]
    left: tuple[Left, ...] = ()

    @property
    def empty(self) -> bool:
        return not self.decided

    def tables(self) -> tuple[Table, ...]:
        return (*self.decided_tables(), left_table(self.left))

    def decided_tables(self) -> tuple[Table, ...]:
        """Returns the tables of decisions; a line for each, unless the plan has more to show."""
        rows = tuple((each.description,) for each in self.decided)
        return (Table("Decided", {"what": Kind.TEXT}, rows),)

    def decisions(self) -> tuple[Decision, ...]:
        return tuple(Decision(each.id, each.description) for each in self.decided)

    def restricted_to(self, ids: Collection[str]) -> Self:
        """Returns the plan with these decisions alone."""
        kept = tuple(each for each in self.decided if each.id in ids)
        return dataclasses.replace(self, decided=kept)


OTHERS = "*"
"""The key of `Pass.not_on` for every platform that is not named."""


@dataclasses.dataclass(frozen=True)
class NothingPlan:
    """The plan of a pass on a platform that it does nothing on.

    Attributes:
      why: the reason, the rest of a sentence.
    """

    platform: str
    why: str

    @property
    def empty(self) -> bool:
        return True

    def summary(self) -> str:
        return f"does nothing on {called(self.platform)}: {self.why}"

    def to_json(self) -> dict[str, object]:
        return {"does_nothing": self.summary()}


@dataclasses.dataclass(frozen=True)
class Pass(ABC):
    """One pass over a StableHLO module; its fields, declared with `option`, are its options.

    `str(p)` is a spec that parses to an equal pass; options at their default are left out.
    Raises SpecError when made with a value that an option does not allow.
    """

    name: ClassVar[str]
    """The name in specs; the class is the same in CamelCase and the file in snake_case."""
    summary: ClassVar[str]
    """A description of the pass, one sentence."""
    example: ClassVar[str]
    """A spec that shows the pass in use."""
    requires: ClassVar[tuple[type[Pass], ...]] = ()
    """Passes that run before this one, with their defaults, unless they ran already."""
    once: ClassVar[bool] = False
    """A spec that names the pass twice is mistaken."""
    preparation: ClassVar[bool] = False
    """The pass only normalises for others: alone it is no reason to change a program."""
    saves_memory: ClassVar[bool] = False
    """The pass does nothing but save memory: a small program may do without it."""
    hides_operations: ClassVar[bool] = False
    """The pass moves operations into calls, where an analysis of memory does not see them."""
    takes_whole_loops: ClassVar[bool] = False
    """The pass has nothing to do once a loop over layers is divided."""
    compiled_by: ClassVar[str] = ""
    """"module:function" of a `hloom.compiling.xla_options.PassCompile` for what the pass makes, as
    by `capture`, which reads from XLA's text what became graphs; imported at the compile alone."""
    not_on: ClassVar[Mapping[str, str]] = {}
    """Why the pass does nothing on a platform, by the platform's name in JAX: in half a sentence.

    `OTHERS` is the key for platforms that are not named; one with an empty reason is named. On such
    a platform a pipeline does not call `plan`.
    """

    def __post_init__(self) -> None:
        for info in options_of(type(self)):
            if not info.allows(value := getattr(self, info.name)):
                raise SpecError(
                    f"{type(self).__name__}: option '{info.name}' of pass '{self.name}' "
                    f"wants {info.wants}, got {value!r}."
                )

    def __str__(self) -> str:
        given = [
            f"{info.name}={info.print(value)}"
            for info in options_of(type(self))
            if (value := getattr(self, info.name)) != info.default
        ]
        return f"{self.name}{{{' '.join(given)}}}" if given else self.name

    @classmethod
    def nothing_on(cls, platform: str) -> NothingPlan | None:
        """Returns the plan for every program on a platform that it does nothing on; else None."""
        why = cls.not_on.get(platform, cls.not_on.get(OTHERS, ""))
        return NothingPlan(platform, why) if why else None

    @abstractmethod
    def plan(self, module: ir.Module, target: Target) -> Plan:
        """Reads the module and decides; never edits it."""

    @abstractmethod
    def apply(self, plan: Any) -> None:
        """Edits the module that `plan` was made on; decides nothing."""

    def xla_options(self, module: ir.Module, platform: str) -> Mapping[str, str | int]:
        """Returns XLA's compile options for the pass's marks in the module, by name."""
        return {}

    def in_front_of(self, later: Pass) -> Pass:
        """Returns the pass as it is configured in a spec where ``later`` follows it."""
        return self

    def behind(self, earlier: Pass) -> Pass:
        """Returns the pass as it is configured in a spec where ``earlier`` precedes it."""
        return self

    def rewrites(self, plan: Any) -> bool:
        """Whether the plan changes the program; False where it only adds marks for compile options.

        Where no step of a pipeline changes it, XLA gets the program as it was, with these options.
        """
        return True
