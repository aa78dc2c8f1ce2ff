"""Counts the tuned numbers: constants at the top level of modules that steer a decision.

A number is a literal, or arithmetic of literals, that a module assigns to a name in capitals, alone
or in a tuple, each element once; or a switch or a limit of the memory model's rules. Tables with
keys are data. A number is not tuned where it is a format, a sentinel, a size of a type or a
constant of XLA, CUDA or JAX (`FACTS`), or where it bounds waiting, damaged input or the length of a
text (`GUARDS`): these steer no plan.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("passes", "lowering", "hloom", "hloom_steps")
RULES = "passes/analysis/memory_model/memory_rules.py"

FACTS = re.compile(
    r"_BITS$|_WIDTHS$|VERSION$|FORMAT$|TESTED$|CAPACITY_LIMIT|_WORD|_MIX|_GOLDEN|_ITSELF|NEVER"
    r"|_FOREVER|FROM_OUTSIDE|BEFORE_ALL|ALWAYS|_PADDING|_CHANNEL|_ORDINARY|_NO_LIMIT|_NO_SCORES"
    r"|_SEED|_BY_HEADS|_SWAPPED|_DEFAULT_LIMIT|TYPED_FFI|_(SEVERAL|RETURNED|NOBODY)$|_UPWARD"
    r"|_DOWNWARD|LARGEST$|tiles\.(LANES|_ROWS)$|_UNIT_S|PRICE_UNITS|(POINTER|FLOAT|ROW|SCALAR|ENTRY)_BYTES"
    r"|_TABLE_ALIGNMENT|_OLDEST|_HOPPER|_HEAD|_HEADS_OF|MOST_RANKS|_HOST_COLOR|_FLOAT32_PASSES"
    r"|_INLINE_INDENT|one_hot.plan\._LONGEST_ROW|_COLLECTIVE_S|_COMBINED_BYTES|_MOST_OPERANDS|_GPU_PERCENT"
)
"""Names of what is given from outside, or only means itself."""

GUARDS = re.compile(
    r"^_?(SHOWN|MOST_LISTED|MOST_LINES|MOST_DRAWN|MOST_ROWS|LONGEST_WORD|MOST_ALIKE|TOLD|FARTHEST"
    r"|LEAST_TOLD|LEAST_PLAIN_BYTES|MOST_ABSENT|LONGEST_NAME|LONGEST_STEP_S|MAX_\w+|\w*TIMEOUT_S|PERIOD_S"
    r"|SHARE|SHARE_OF_MEMORY|MOST_RUNS|MOST_JSON_BYTES|MOST_TEXT_BYTES|MOST_NESTED|MOST_DIGITS|WIDEST"
    r"|AGREE_S|MEET_S|SILENT_S|PROBES|TOKEN_BYTES|HELLO_S|POLL_S|GRACE_S|PNG_\w+|RUNS"
    r"|LARGEST_BYTES|MOST_CHARACTERS|MOST_MAKERS|MOST_STEPS|PARTS)$"
)
"""Names of what bounds waiting, damaged input or a text, in the folders of `_TEXTS`."""

_TEXTS = re.compile(
    r"hloom/|hloom_steps/mpmd/|passes/framework/|peak_text|accumulate/batch|accumulate/plan"
    r"|chunk/plan\.py|offload/plan|one_hot/plan|capture/plan|pipeline/plan"
)

_SOURCE = re.compile(
    r"\d{4}-\d\d-\d\d|\bXLA|cuDNN|NVIDIA|HiGHS|scipy|libtpu|jaxlib|jax 0\.|\.cc\b|\.h\b|\.cuh"
    r"|benchmarks/|[Mm]easured|[Ff]itted|as in `|as `|microsecond|\((?:[A-Z]\w+ )?et al"
)
"""What a docstring names that has its number from there."""


@dataclass(frozen=True)
class Number:
    """A name and its number or numbers.

    Attributes:
      file: the module, from the root.
      name: what it is assigned to.
      count: how many literals.
      says: the comment or docstring beside it.
      kind: "tuned", "fact" or "guard".
    """

    file: str
    name: str
    count: int
    says: str
    kind: str

    @property
    def key(self) -> str:
        """The module's dotted name and the number's."""
        return f"{self.file.removesuffix('.py').replace('/', '.')}.{self.name}"

    @property
    def has_source(self) -> bool:
        """Whether the text beside it says where it comes from."""
        return bool(_SOURCE.search(self.says))


def numbers() -> Iterator[Number]:
    """Every number of the product, in the order of files."""
    for folder in PRODUCT:
        for file in sorted((ROOT / folder).rglob("*.py")):
            if file.resolve() == file:
                yield from _of_file(str(file.relative_to(ROOT)), file.read_text("utf-8"))


@functools.cache
def tuned() -> tuple[Number, ...]:
    """The tuned ones."""
    return tuple(each for each in numbers() if each.kind == "tuned")


def counts() -> dict[str, dict[str, int]]:
    """By folder, how many numbers there are of each kind."""
    found = {folder: dict.fromkeys(("tuned", "fact", "guard"), 0) for folder in PRODUCT}
    for each in numbers():
        found[each.file.split("/")[0]][each.kind] += each.count
    return found


def _of_file(file: str, source: str) -> Iterator[Number]:
    tree, lines = ast.parse(source), source.splitlines()
    yield from _of_body(file, "", tree.body, lines)
    if file == RULES:
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
        found = [each for c in classes for each in _of_body(file, f"{c.name}.", c.body, lines)]
        # A rule that a class overrides is one number.
        yield from {each.name.split(".")[1]: each for each in reversed(found)}.values()


def _of_body(file: str, inside: str, body: list[ast.stmt], lines: list[str]) -> Iterator[Number]:
    for place, node in enumerate(body):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        [target] = node.targets if isinstance(node, ast.Assign) else [node.target]
        says = _beside(body[place + 1 :], lines[: node.lineno])
        for name, value in _pairs(target, node.value):
            count = _count(value, with_switches=bool(inside))
            if count and (inside or name.upper() == name):
                yield Number(file, inside + name, count, says, _kind(file, name))


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for each, part in zip(target.elts, value.elts, strict=True):
            yield from _pairs(each, part)
    elif isinstance(target, ast.Name):
        yield target.id, value


def _count(value: ast.expr, *, with_switches: bool) -> int:
    parts = value.elts if isinstance(value, ast.Tuple) else [value]
    return sum(_is_number(each, with_switches=with_switches) for each in parts)


def _is_number(value: ast.expr, *, with_switches: bool) -> bool:
    if isinstance(value, ast.BinOp):
        return all(_is_number(v, with_switches=False) for v in (value.left, value.right))
    if isinstance(value, ast.UnaryOp):
        return _is_number(value.operand, with_switches=False)
    if isinstance(value, ast.IfExp):
        return _is_number(value.body, with_switches=False)
    types = (int, float, bool) if with_switches else (int, float)
    return isinstance(value, ast.Constant) and type(value.value) in types


def _beside(after: list[ast.stmt], before: list[str]) -> str:
    """The docstring of an assignment, or of the row of assignments that it stands in."""
    for node in after:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return str(node.value.value)
        if not isinstance(node, ast.Assign):
            break
    comment = before[-2].strip() if len(before) > 1 else ""
    return comment if comment.startswith("#") else ""


def _kind(file: str, name: str) -> str:
    if FACTS.search(f"{file.removesuffix('.py').replace('/', '.')}.{name}"):
        return "fact"
    return "guard" if GUARDS.search(name) and _TEXTS.search(file) else "tuned"
