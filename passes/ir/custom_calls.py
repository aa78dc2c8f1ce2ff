"""What a custom call is: its target, its API version, the operands that its results lie in."""

from __future__ import annotations

import re

from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from hloom.passes.ir import walk

CUSTOM_CALL = "stablehlo.custom_call"

OWN = "hloom."
"""How the targets of hloom's own kernels begin."""

TYPED_FFI = 4
"""The `api_version` of a custom call to a typed FFI handler."""

_TYPED_ATTRIBUTES = "mhlo.backend_config"
"""Where JAX writes the attributes for a typed FFI handler, and then no `api_version`."""

_PYTHON_CALLBACK = re.compile(r"\w*_python_\w*callback")
"""The targets by which JAX calls Python, on every platform."""


def target_of(op: ir.Operation) -> str | None:
    """The target of a custom call; None where the operation is none."""
    if op.name != CUSTOM_CALL:
        return None
    return ir.StringAttr(op.attributes["call_target_name"]).value


def is_typed_ffi(call: ir.Operation) -> bool:
    """Whether a custom call goes to a typed FFI handler; the others are legacy."""
    attributes = walk.readable_attributes(call)
    version = attributes.get("api_version")
    typed = isinstance(version, ir.IntegerAttr) and version.value == TYPED_FFI
    return typed or _TYPED_ATTRIBUTES in attributes


def aliased_operands(call: ir.Operation) -> frozenset[int]:
    """The operands whose buffers a custom call writes its results to."""
    aliases = walk.readable_attributes(call).get("output_operand_aliases")
    found = list(aliases) if isinstance(aliases, ir.ArrayAttr) else []
    return frozenset(stablehlo.OutputOperandAlias(alias).operand_index for alias in found)


def is_python_callback(target: str) -> bool:
    """Whether a custom call of this target is JAX's call of a Python function."""
    return _PYTHON_CALLBACK.fullmatch(target) is not None


def is_host_callback(op: ir.Operation) -> bool:
    """Whether the operation itself calls Python on the host."""
    target = target_of(op)
    return target is not None and is_python_callback(target)
