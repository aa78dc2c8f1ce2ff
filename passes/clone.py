"""Copies of modules: for passes to change, and to try things on."""

from __future__ import annotations

from jax.extend.mlir import ir


def clone_module(module: ir.Module) -> ir.Module:
    """A copy of the module in the same context, locations included."""
    # `Operation.clone` would be shorter, but gives an operation, and the bindings have no way
    # back from it to the `ir.Module` that compilers take.
    with module.context:
        clone = ir.Module.create(module.operation.location)
        for name, attribute in _attributes(module).items():
            clone.operation.attributes[name] = attribute
        for operation in module.body.operations:
            # ip=False: no matter what a caller further up is building, insert nothing there.
            clone.body.append(operation.operation.clone(ip=False))
    return clone


def _attributes(module: ir.Module) -> dict[str, ir.Attribute]:
    attributes = module.operation.attributes
    return {name: attributes[name] for name in attributes}
