"""Runs calls of calls.py: `python worker.py LIBRARY < cases`, lines of a kind, a tab and a name.

Prints a line of JSON for each, with what became of it. A call that crashes ends the process: the
caller starts another one for the names that are left.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path
from typing import Any

from support import xla_flags
from support.malformed.call_modules import RANKS

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = xla_flags(RANKS)

import jax
import numpy as np
from jax._src import compiler
from jax.extend.mlir import ir
from jaxlib import _jax

from hloom._jax.modules import make_context
from hloom.runtime import library, registration, targets
from support.malformed.calls import cases


def run(text: str) -> dict[str, Any]:
    """What the module gave, by result and device, or the text of the error."""
    devices = jax.devices()
    options = compiler.get_compile_options(
        num_replicas=RANKS, num_partitions=1, device_assignment=np.arange(RANKS).reshape(RANKS, 1)
    )
    options.executable_build_options.use_spmd_partitioning = False
    try:
        with make_context():
            executable = devices[0].client.compile_and_load(
                ir.Module.parse(text), _jax.DeviceList(tuple(devices)), options
            )
        by_result = executable.execute_sharded([]).disassemble_into_single_device_arrays()
        # Whole numbers, whatever their type.
        return {"results": [[_numbers(each) for each in result] for result in by_result]}
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _numbers(array: Any) -> Any:
    """Its elements, one for each row where a row has the same everywhere; None for none."""
    values = np.asarray(array)
    if values.size == 0:
        return None
    values = values.real.astype(np.int64)
    same = values.ndim == 2 and (values == values[:, :1]).all()
    return (values[:, 0] if same else values).tolist()


def main() -> None:
    library.find_library = lambda: Path(sys.argv[1])
    registration.register(targets("cpu"), "cpu")
    every = functools.cache(cases)
    for line in sys.stdin.read().splitlines():
        kind, _, name = line.partition("\t")
        print(json.dumps({"case": line, **run(every(kind)[name].module)}), flush=True)
    # Runs that failed may still hold threads of XLA's.
    os._exit(0)


if __name__ == "__main__":
    main()
