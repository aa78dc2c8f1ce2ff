"""The needs of kernels and collectives, and the partitions that have met behind these."""

from __future__ import annotations

import json
import re
from typing import Literal

from jax.extend.mlir import ir

from ..ir import walk
from ..ir.build_collectives import Groups
from ..ir.collectives import (
    ATTRIBUTE,
    CollectiveError,
    SyncRequirement,
    declared_for,
    declared_on,
    described,
    replica_groups,
)
from ..ir.custom_calls import target_of
from ..ir.marks import can_carry_dependency
from ..ir.ops import facts_of

Participants = frozenset[frozenset[int]]
"""The sets of partitions that synchronize: every partition of the module is in exactly one."""


def sync_requirement_of(call: ir.Operation) -> SyncRequirement | None:
    """Returns a custom call's needs; None where it is not declared to access its peers.

    The call's own attribute takes precedence over its target's declaration. Raises CollectiveError
    where the attribute cannot be read.
    """
    target = target_of(call)
    if target is None:
        return None
    text = declared_on(call)
    if text is None:
        return declared_for(target)
    try:
        return parse_sync_requirement(text)
    except ValueError as error:
        raise CollectiveError(f"{described(call)}: its attribute {ATTRIBUTE} {error}") from error


_WORD = re.compile(
    r"(?P<entry>entry)|exit=(?P<exit>after|module)|groups=(?P<groups>\[\s*\[[\d\s,\[\]]*\])"
)


def parse_sync_requirement(text: str) -> SyncRequirement:
    """Returns the needs that "entry exit=after groups=[[0,1],[2,3]]" spells; each word may be left
    out.

    Raises ValueError, with a text that continues after the attribute's name.
    """
    words: dict[str, str] = {}
    exits: dict[str, Literal["after", "module"]] = {"after": "after", "module": "module"}
    at = 0
    while rest := text[at:].lstrip():
        at = len(text) - len(rest)
        match = _WORD.match(text, at)
        if match is None or text[match.end() : match.end() + 1].strip():
            raise ValueError(
                f"wants any of 'entry', 'exit=after' or 'exit=module', and 'groups=[[0,1],[2,3]]', "
                f"with spaces between, got {rest!r}"
            )
        word = match.lastgroup or ""
        if word in words:
            raise ValueError(f"has '{word}' twice: {text!r}")
        words[word] = match[word]
        at = match.end()
    if not words.keys() & {"entry", "exit"}:
        raise ValueError(f"wants 'entry' or 'exit=...' at least, got {text!r}")
    return SyncRequirement(
        entry="entry" in words,
        exit=exits.get(words.get("exit", "")),
        groups=_parse_groups(words["groups"]) if "groups" in words else None,
    )


def _parse_groups(text: str) -> Groups:
    try:
        rows = json.loads(text)
    except json.JSONDecodeError:
        rows = None
    if not rows or not all(isinstance(row, list) and row for row in rows):
        raise ValueError(f"wants groups like [[0,1],[2,3]], none of them empty, got {text!r}")
    if not all(type(each) is int for row in rows for each in row):
        raise ValueError(f"wants groups of partition numbers, got {text!r}")
    members = [each for row in rows for each in row]
    if twice := sorted({each for each in members if members.count(each) > 1}):
        raise ValueError(f"has partition {twice[0]} in its groups twice: {text!r}")
    return tuple(map(tuple, rows))


def partitions_of_groups(groups: Groups | None, partitions: int) -> Participants:
    """Returns the sets of partitions that these groups are; None is one group of all.

    Raises ValueError where the module has no such partition, or a partition is in two groups.
    """
    if groups is None:
        return frozenset({frozenset(range(partitions))})
    rows = [frozenset(each for each in row if each >= 0) for row in groups]
    members = [each for row in rows for each in row]
    if unknown := sorted(set(members) - set(range(partitions))):
        raise ValueError(
            f"names partition {unknown[0]} in its groups, and the module has {partitions}: "
            f"0 to {partitions - 1}"
        )
    if len(set(members)) < len(members):
        raise ValueError(f"has a partition in its groups twice: {groups}")
    alone = set(range(partitions)) - set(members)
    return frozenset(row for row in rows if row) | {frozenset({each}) for each in alone}


def groups_of_partitions(participants: Participants) -> Groups:
    """Returns the groups, sorted, every partition in one; -1 fills the rows up to one length."""
    rows = sorted(sorted(group) for group in participants)
    length = max(map(len, rows))
    return tuple((*row, *[-1] * (length - len(row))) for row in rows)


def covers(participants: Participants, needed: Participants) -> bool:
    """Whether each set of ``needed`` is contained in one set of ``participants``."""
    return all(any(group <= each for each in participants) for group in needed)


def is_trivial(participants: Participants) -> bool:
    """Whether each partition is alone."""
    return all(len(group) == 1 for group in participants)


def ragged_groups(call: ir.Operation) -> Groups:
    """Returns the groups of a ragged all-to-all. Raises CollectiveError where it names none."""
    config = walk.readable_attributes(call).get("backend_config")
    if isinstance(config, ir.DictAttr) and "replica_groups" in config:
        groups = replica_groups(call, config["replica_groups"])
        if groups is not None:
            return groups
    raise CollectiveError(f"{described(call)} has no replica_groups in its backend_config")


def synchronized(op: ir.Operation, partitions: int) -> Participants | None:
    """Returns the sets of partitions that have arrived at a collective once one has its result.

    None where that is not certain: not all data comes from all partitions (a permutation, a
    broadcast), the groups are not partitions or cannot be read, or the data is empty.
    """
    attributes = walk.readable_attributes(op)
    if not facts_of(op.name).synchronizes or attributes.get("channel_handle") is None:
        return None
    if op.name != "stablehlo.all_to_all" and "use_global_device_ids" not in attributes:
        return None
    groups = replica_groups(op, attributes.get("replica_groups"))
    if groups is None or not all(can_carry_dependency(operand.type) for operand in op.operands):
        return None
    try:
        return partitions_of_groups(groups or None, partitions)
    except ValueError:
        return None
