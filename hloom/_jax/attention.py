"""JAX's checks of the process's own GPU in front of cuDNN's attention.

`jax.nn.dot_product_attention(implementation="cudnn")` asks the first local GPU what its kernels
take (`jax/_src/cudnn/fused_attention_stablehlo.py`, 0.10.2 and 0.12). A program that is compiled
for a GPU that is not here has none to ask.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

_VERSION = 91400
"""cuDNN 9.14, which has all kernels that JAX checks for."""


def checked_for(capability: tuple[int, int]) -> AbstractContextManager[Any]:
    """Lets JAX lower its calls of cuDNN's attention inside the block as for a GPU of this compute
    capability, e.g. (9, 0)."""
    from unittest import mock

    from jax._src.cudnn import fused_attention_stablehlo

    def is_reached(wanted: str) -> bool:
        major, minor = map(int, wanted.split("."))
        return capability >= (major, minor)

    return mock.patch.multiple(
        fused_attention_stablehlo,
        check_compute_capability=is_reached,
        check_cudnn_version=lambda: _VERSION,
    )
