"""Rules of elementwise operations: every axis is passed through; some operations are linear."""

from __future__ import annotations

from jax.extend.mlir import ir

from ...ir.types import float_format, holds
from .rules import OpSite, SignatureBuilder, linear_in, signature
from .signature import ANY, EXTREMES, SUMS, Combine, LinearGroup, Signature


def elementwise(site: OpSite) -> Signature | None:
    return _elementwise(site)


@signature(
    "stablehlo.add",
    "stablehlo.complex",
    "stablehlo.imag",
    "stablehlo.negate",
    "stablehlo.real",
    "stablehlo.subtract",
    "chlo.conj",
)
def linear(site: OpSite) -> Signature | None:
    """Returns a signature linear in all operands together: sums, differences, complex parts."""
    return _elementwise(site, linear_in(*range(len(site.operands))))


@signature("stablehlo.multiply")
def multiply(site: OpSite) -> Signature | None:
    return _elementwise(site, linear_in(0), linear_in(1))


@signature("stablehlo.divide")
def divide(site: OpSite) -> Signature | None:
    """Returns the signature of a quotient, not linear for integers, which it rounds."""
    if isinstance(site.made_element(), ir.IntegerType):
        return _elementwise(site)
    return _elementwise(site, linear_in(0))


@signature("stablehlo.select")
def select(site: OpSite) -> Signature | None:
    return _elementwise(site, linear_in(1, 2, kinds=ANY))


@signature("stablehlo.convert")
def convert(site: OpSite) -> Signature | None:
    """Returns the signature of a conversion: rounding keeps maxima, and sums up to rounded terms.

    Sums only between types of one range, as bfloat16's and float32's: a term of a sum may be larger
    than the sum.
    """
    before, after = site.element(0), site.made_element()
    if isinstance(before, ir.FloatType) and isinstance(after, ir.ComplexType):
        exact = holds(after.element_type, before)
        return _elementwise(site, linear_in(0)) if exact else _elementwise(site)
    if not (isinstance(before, ir.FloatType) and isinstance(after, ir.FloatType)):
        return _elementwise(site)
    if holds(after, before):
        return _elementwise(site, linear_in(0, kinds=ANY))
    wide, narrow = float_format(before), float_format(after)
    has_range = wide and narrow and wide.exponent_bits == narrow.exponent_bits
    rounded = SUMS if has_range else frozenset[Combine]()
    return _elementwise(site, LinearGroup(frozenset({0}), EXTREMES, rounded))


@signature("stablehlo.maximum", "stablehlo.minimum")
def extremum(site: OpSite) -> Signature | None:
    larger = site.op.name == "stablehlo.maximum"
    kinds = frozenset({Combine.MAX if larger else Combine.MIN})
    return _elementwise(site, linear_in(0, 1, kinds=kinds))


@signature("stablehlo.bitcast_convert")
def bitcast(site: OpSite) -> Signature | None:
    """Returns the signature of a bitcast: between widths the last axis is an element's parts."""
    build = SignatureBuilder()
    [before], [after] = site.operands, site.results
    shared = min(len(before), len(after))
    axes = build.axes(before[:shared])
    return build.signature(
        [axes + build.axes(before[shared:])], [axes + build.axes(after[shared:])]
    )


def _elementwise(site: OpSite, *groups: LinearGroup) -> Signature | None:
    """Returns the signature for operands of the results' shape, or scalars as a clamp's bounds."""
    build = SignatureBuilder()
    shape = site.results[0]
    axes = build.axes(shape)
    if any(made != shape for made in site.results):
        return None
    if any(read not in (shape, ()) for read in site.operands):
        return None
    operands = [axes if read == shape else [] for read in site.operands]
    return build.signature(operands, [axes] * len(site.results), linear=groups)
