"""A program as JAX passes it to its compile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # Importing it loads much of JAX that a process without a spec has no use for.
    from jax.extend.mlir import ir


@dataclass(frozen=True)
class Origin:
    """A program and the devices and options that it is compiled for.

    Attributes:
      module: the program.
      backend: JAX's backend.
      devices: an array of the devices that it is for.
      options: JAX's compile options.
    """

    module: ir.Module
    backend: Any
    devices: Any
    options: Any

    @property
    def name(self) -> str:
        """The program's name: the module's, or that of the function that `jax.pmap` was given."""
        return module_name(self.module)

    @property
    def xla_name(self) -> str:
        """The name that XLA knows the module by."""
        return _symbol(self.module)


def module_name(module: ir.Module) -> str:
    """The module's name, e.g. "jit_step"; "module" where it has none.

    JAX gives every module of `jax.pmap` the same name: here it is named by the user's function,
    e.g. "pmap_step".
    """
    from hloom._jax.modules import pmapped_function

    name = _symbol(module)
    function = pmapped_function(module, name)
    return f"pmap_{function}" if function else name


def _symbol(module: ir.Module) -> str:
    from jax.extend.mlir import ir

    attributes = module.operation.attributes
    return ir.StringAttr(attributes["sym_name"]).value if "sym_name" in attributes else "module"
