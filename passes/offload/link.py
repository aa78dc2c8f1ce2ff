"""What a loop's own work hides of copies between the device and its host.

A store can start when the forward body has made its value, and has to end with the iteration: it
spans the work that the value does not wait for. A load of the next iteration's slice spans a whole
iteration. All copies of one direction share the link.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from jax.extend.mlir import ir

from ..analysis.cost import seconds
from ..analysis.loops.counted import CountedLoop
from ..framework.target import Speed
from ..ir import walk
from ..ir.types import TensorSizes
from ..ir.values import defining_op


@dataclass(frozen=True, eq=False)
class LoopWork:
    """What a loop's body does in one iteration, by the cost model.

    Attributes:
      trip_count: its iterations.
      iteration_s: seconds of one, on one device.
    """

    trip_count: int
    iteration_s: float
    _op_s: dict[object, float] = field(repr=False)

    @classmethod
    def of(cls, loop: CountedLoop, speed: Speed, devices: int) -> LoopWork:
        """The work of a loop. Over several devices it is taken to be split evenly: where it is
        not, more is hidden than is said."""
        sizes = TensorSizes()
        op_s = {
            walk.key(view.operation): seconds(view.operation, speed, sizes) / devices
            for view in loop.body.operations
        }
        return cls(loop.trip_count, sum(op_s.values()), op_s)

    def after_s(self, value: ir.Value) -> float:
        """Seconds of the body's work that do not lead to a value of the body."""
        needed: set[object] = set()
        waiting = [value]
        while waiting:
            op = defining_op(waiting.pop())
            if op is None or (key := walk.key(op)) not in self._op_s or key in needed:
                continue
            needed.add(key)
            waiting += walk.values_read(op)
        return self.iteration_s - sum(self._op_s[key] for key in needed)

    @property
    def seconds(self) -> float:
        """Seconds of all iterations."""
        return self.trip_count * self.iteration_s


def exposed_s(copies: Iterable[tuple[float, float]]) -> float:
    """Seconds by which copies over one link outlast the work that they can span.

    Each copy has the seconds that it takes and those of the work from when it may start to when it
    has to end. All end at once: the copy with the least time left goes last.
    """
    exposed = taken = 0.0
    for copy_s, window_s in sorted(copies, key=lambda copy: copy[1]):
        taken += copy_s
        exposed = max(exposed, taken - window_s)
    return exposed
