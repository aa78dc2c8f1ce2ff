"""Generates the documentation of the passes: `hloom passes` and docs/passes.md."""

from __future__ import annotations

import argparse
import inspect
import io
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markdown import Markdown
from rich.padding import Padding
from rich.text import Text

from hloom.passes.framework import registry
from hloom.passes.framework.base import OTHERS, Pass
from hloom.passes.framework.errors import did_you_mean
from hloom.passes.framework.options import OptionInfo, options_of
from hloom.passes.framework.tables import Kind
from hloom.passes.framework.target import called
from hloom.show.terminal import PlainConsole
from hloom.show.visible import visible
from hloom_tools.complaint import complain
from hloom_tools.document.content import Document, Section, table_of
from hloom_tools.document.terminal import show
from hloom_tools.output import STANDARD_OUTPUT, add_json, write_json

_HEAD = """\
# Passes

<!-- Written by `hloom passes --markdown > docs/passes.md`; a test keeps it true. -->

Each pass as `hloom passes NAME` prints it:

```console
$ hloom passes %s
%s
…
```

A spec names passes in the order they run: `name{option=value option=value},name`. `off` stands
for none and `default` for the recommended ones, now `%s`. Give it to JAX as
`JAX_HLOOM=SPEC`, or to `hloom-opt -p SPEC`. What a pass needs runs first, unless the spec has it
before. [The index](README.md) has the pages that say more.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `hloom passes` to a parser."""
    parser.description = "Lists the passes, or tells all about one: options, defaults, an example."
    parser.add_argument("name", nargs="?", metavar="NAME", help="tell all about this pass")
    parser.add_argument("--markdown", action="store_true", help="print what docs/passes.md holds")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs `hloom passes` and returns its exit status."""
    is_quiet = arguments.json == STANDARD_OUTPUT
    try:
        if arguments.name is not None:
            found = [_named(arguments.name, markdown=arguments.markdown)]
            if not is_quiet:
                PlainConsole().print(details(found[0]))
        else:
            found = list(registry.all_passes())
            if arguments.markdown:
                sys.stdout.write(markdown())
            elif not is_quiet:
                show(overview())
        if arguments.json is not None:
            write_json(arguments.json, list(map(_values, found)))
    except (OSError, ValueError, registry.PassLoadError) as error:
        return complain("hloom", error)
    for problem in registry.problems():
        print(f"hloom: warning: {visible(problem)}", file=sys.stderr)
    return 0


def _named(name: str, *, markdown: bool) -> type[Pass]:
    """Returns the pass of a name. Raises ValueError without one, PassLoadError for a broken one."""
    if markdown:
        raise ValueError("--markdown prints every pass; leave out the name.")
    pass_class = registry.lookup(name)
    if pass_class is None:
        names = registry.names()
        listed = f" Passes: {', '.join(names)}."
        close = did_you_mean(name.partition("{")[0].strip().lower(), names)
        raise ValueError(f"unknown pass '{name}'.{close or listed}")
    return pass_class


def _values(cls: type[Pass]) -> dict[str, Any]:
    """Returns all about a pass as values that `json.dumps` takes."""
    return {
        "name": cls.name,
        "summary": cls.summary,
        "is_helper": cls.preparation,
        "example": cls.example,
        "requires": [required.name for required in cls.requires],
        "options": [
            {"name": o.name, "value": _value(o), "default": o.shown_default, "meaning": o.doc}
            for o in options_of(cls)
        ],
    }


def markdown() -> str:
    """Returns docs/passes.md: every registered pass, sorted by name."""
    classes = registry.all_passes()
    heads = {_printed(cls): cls.name for cls in classes if options_of(cls)}
    shortest = min(heads, key=len)
    head = _HEAD % (heads[shortest], shortest, registry.DEFAULT)
    return "\n".join([head, _overview(classes), *map(_section, classes)])


def _printed(cls: type[Pass]) -> str:
    """Returns the head and the options of a pass as a terminal of 80 columns shows them."""
    written = io.StringIO()
    console = PlainConsole(width=80, file=written, color_system=None)
    console.print(_head(cls), Padding(_terminal_options(cls), (1, 2, 0, 2)))
    lines = written.getvalue().splitlines()
    return "\n".join(line.rstrip() for line in lines).rstrip()


def overview() -> Document:
    """Returns a line for each registered pass: passes for specs, then their helpers."""
    columns = (("name", Kind.CODE), ("what it does", Kind.TEXT))
    sections = []
    for title, helps in (("passes", False), ("helpers, which others run by themselves", True)):
        rows = [(c.name, c.summary) for c in registry.all_passes() if c.preparation is helps]
        sections.append(Section(title, tables=(table_of("", columns, rows, most=0),)))
    more = "`hloom passes NAME` has a pass's options and an example."
    recommended = Section("Recommended", summary=f"default, which is {registry.DEFAULT}. {more}")
    return Document("passes", (*sections, recommended))


def details(cls: type[Pass]) -> RenderableType:
    """Returns everything about one pass, for a terminal."""
    return Group(
        _head(cls),
        Padding(Group(_terminal_options(cls), _terminal_facts(cls)), (1, 2)),
        Padding(_Narrow(_docstring(cls)), (0, 2)),
    )


def _head(cls: type[Pass]) -> Text:
    return Text.assemble((cls.name, "bold cyan"), "  ", cls.summary)


class _Narrow:
    """Markdown whose code blocks wrap on a narrow terminal."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width - 2  # a space on each side
        code, lines = False, []
        for line in self._text.splitlines():
            code ^= line.startswith("```")
            if code and len(line) > room:
                line = re.sub(r"(?<=\S) {2,}", "  ", line)
            lines.append(line)
        yield Markdown("\n".join(lines))


def _overview(classes: Iterable[type[Pass]]) -> str:
    return "".join(f"- [`{cls.name}`](#{cls.name}): {cls.summary}\n" for cls in classes)


def _section(cls: type[Pass]) -> str:
    lines = [f"## {cls.name}", "", _docstring(cls), ""]
    if options := options_of(cls):
        lines += [f"- `{o.name}` ({_value(o)}{_default(o)}): {o.doc}" for o in options]
    else:
        lines.append("It has no options.")
    lines += ["", *_facts(cls, quote="`"), ""]
    return "\n".join(lines)


def _facts(cls: type[Pass], *, quote: str) -> Iterator[str]:
    if cls.requires:
        names = ", ".join(f"{quote}{required.name}{quote}" for required in cls.requires)
        yield f"Runs first: {names}.\n"
    if cls.preparation:
        yield "It prepares for other passes; alone it changes nothing.\n"
    acts = [called(platform) for platform, why in cls.not_on.items() if not why]
    for platform, why in cls.not_on.items():
        where = f"anything but {' and '.join(acts)}" if platform == OTHERS else called(platform)
        if why:
            yield textwrap.fill(f"On {where} it does nothing: {why}.", 100) + "\n"
    yield f"Example: {quote}{cls.example}{quote}"


def _value(option: OptionInfo) -> str:
    return f"{option.wants} ({option.unit})" if option.unit else option.wants


def _default(option: OptionInfo) -> str:
    return "" if option.default is None else f"; default: `{option.shown_default}`"


def _terminal_options(cls: type[Pass]) -> RenderableType:
    parts: list[RenderableType] = []
    for o in options_of(cls):
        value = f"  {_value(o)}; default: {o.shown_default}"
        parts += [
            Text.assemble((o.name, "bold"), (value, "dim")),
            Padding(Text(o.doc), (0, 0, 0, 4)),
        ]
    return Group(*parts, *([Text()] if parts else []))


def _terminal_facts(cls: type[Pass]) -> RenderableType:
    return Group(*(Text(" ".join(fact.split())) for fact in _facts(cls, quote="")))


def _docstring(cls: type[Pass]) -> str:
    """Returns the docstring of a pass's module as markdown: literal blocks become fences."""
    text = inspect.cleandoc(sys.modules[cls.__module__].__doc__ or cls.summary)
    lines = text.splitlines()
    result: list[str] = []
    block: list[str] = []
    in_block = False
    for line in [*lines, ""]:
        if in_block and (line.startswith("    ") or not line):
            block.append(line)
            continue
        if in_block:
            result += _fence(block)
            block, in_block = [], False
        in_block = line.endswith("::")
        result.append(_inline(line.removesuffix(":") if in_block else line))
    if in_block:
        result += _fence(block)
    return "\n".join(result).strip()


def _fence(block: list[str]) -> list[str]:
    code = inspect.cleandoc("\n" + "\n".join(block)).strip("\n")
    return ["", "```mlir", code, "```", ""]


def _inline(line: str) -> str:
    return re.sub(r"``(.+?)``", r"`\1`", line)
