"""Failures of passes and compiles: raised in strict mode, otherwise the user is warned once."""

from __future__ import annotations

from pathlib import Path

from hloom.compiling.request import CompileRequest
from hloom.passes.framework.errors import PassError
from hloom.passes.framework.feedback import Complaint
from hloom.passes.framework.pipeline import PassRun
from hloom.policy import first_time, is_strict, warn


class Failures:
    """Collects the failures of one program, and raises or warns.

    Attributes:
      fell_back: why the original was compiled in spite of the pipeline; None where it was not.
      complaint: the part of the spec that the program does not meet.
      complaints: all complaints, each with the pass that has it.
      stopped: whether a step failed after an attempt that is used instead.
      dump_dir: the folder that the failing program was written to.
    """

    def __init__(self, request: CompileRequest) -> None:
        self.fell_back: str | None = None
        self.complaint: str | None = None
        self.complaints: list[tuple[str, Complaint]] = []
        self.stopped = False
        self.dump_dir: Path | None = None
        self._request = request

    def fall_back(self, failure: PassError) -> None:
        """Raises `failure` or warns, once, that the original is compiled."""
        self.fell_back = str(failure)
        repeat = f"`hloom-opt 00-input.mlir -p '{self._request.pipeline}'` repeats it."
        self._tell(failure, "compiled as it was", repeat)

    def stop_trying(self, failure: PassError) -> None:
        """Raises `failure` or warns, once, that an earlier attempt is used."""
        self.complaint, self.stopped = str(failure), True
        self._tell(failure, "compiled as the best plan before has it", "")

    def give_up(self, failure: PassError) -> None:
        """Warns, once, which attempts were made for a program that XLA refuses in any form."""
        request = self._request
        if not first_time(f"{request.name}: {failure}"):
            return
        self.dump_dir = request.observer.failed(request.pipeline, request.target, failure)
        seen = "" if self.dump_dir is None else f" See {self.dump_dir}."
        warn(f"hloom: {failure}. XLA refuses '{request.name}' as it was, too.{seen}")

    def complain(self, pass_name: str, complaint: Complaint) -> None:
        """Raises the complaint of a pass in strict mode; otherwise warns of it, once."""
        name, text = self._request.name, complaint.text
        if is_strict() and self._request.falls_back:
            raise PassError(pass_name, "hold", f"'{name}': {text}")
        self.complaints.append((pass_name, complaint))
        self.complaint = " ".join(filter(None, (self.complaint, text)))
        if not self._request.falls_back:
            return
        topic = complaint.topic
        # Another spec gets its own warning.
        if first_time(f"{self._request.pipeline}: {topic or f'{name}: {pass_name}: {text}'}"):
            what, *more = text.splitlines()
            # With its options: Python itself shows one text of one line once.
            named = (str(step) for step in self._request.pipeline.steps() if step.name == pass_name)
            step = next(named, pass_name)
            what = f"hloom: pass '{step}': '{name}': {what} The program is compiled anyway."
            others = (
                " Further programs with this problem are only in hloom.records()." if topic else ""
            )
            warn("\n".join((f"{what}{others}", *more)))

    def advise(self, run: PassRun) -> None:
        """Warns, once, of a drawback of a pass's result; never raises."""
        text = f"hloom: pass '{run.name}': '{self._request.name}': {run.warning}"
        if self._request.falls_back and first_time(f"{self._request.pipeline}: {text}"):
            warn(text)

    def _tell(self, failure: PassError, outcome: str, repeat: str) -> None:
        request = self._request
        if is_strict() or not request.falls_back:
            raise failure
        if not first_time(f"{request.name}: {failure}"):
            return
        self.dump_dir = request.observer.failed(request.pipeline, request.target, failure)
        text = f"hloom: {failure}. '{request.name}' is {outcome}."
        if self.dump_dir is not None:
            text += f" See {self.dump_dir}: {repeat}" if repeat else f" See {self.dump_dir}."
        warn(text)


def in_lines(pass_name: str, refusal: str) -> str:
    """Formats a refusal of a pass in lines: the request, the reason, and the remedy."""
    what, _, why = refusal.partition("; ")
    lines = [f"{what.removesuffix('.')}."]
    if why:
        lines.append(f"  {why[:1].upper()}{why[1:]}")
    lines.append(f"  `hloom passes {pass_name}` has what it needs, and its options.")
    return "\n".join(lines)
