"""Programs that `remat` has to get right: each a function, its arguments, and what it is there for.

Every program is a gradient of something, small enough to run in an instant. Arguments come from a
fixed seed. Values are of order one, so that an absolute tolerance means something.
"""

from support.programs import scans, straight_line
from support.programs.registry import PROGRAMS, Program, gradient, normal, weights

__all__ = ["PROGRAMS", "Program", "gradient", "normal", "scans", "straight_line", "weights"]
