"""An Orbax checkpoint that one process writes alone. Importing this module imports Orbax."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore


def save(folder: Path, values: Mapping[str, np.ndarray]) -> None:
    """Writes the values to a new folder. Raises what Orbax and TensorStore raise."""
    with _checkpointer() as checkpointer:
        checkpointer.save(folder.absolute(), dict(values))


def restore(folder: Path) -> dict[str, np.ndarray]:
    """The values of a checkpoint. Raises what Orbax and TensorStore raise."""
    with _checkpointer() as checkpointer:
        return dict(checkpointer.restore(folder.absolute()))


def stored_values(folder: Path) -> dict[str, int]:
    """How many values reading each array of a checkpoint takes, by key; none of them is read.

    Raises what Orbax and TensorStore raise, and AttributeError where something is no array.
    """
    with _checkpointer() as checkpointer:
        metadata = checkpointer.metadata(folder.absolute()).item_metadata
    if metadata is None:
        raise ValueError("it is no checkpoint of Orbax")
    # A chunk is read whole.
    return {
        key: max(math.prod(array.shape), math.prod(array.storage.chunk_shape))
        for key, array in metadata.tree.items()
    }


class _ShareHandler(ocp.type_handlers.NumpyHandler):  # type: ignore[misc]
    """Writes NumPy arrays in whichever process it is; Orbax's own does in the first one only.

    That one takes NumPy arrays for what every process has whole. Here they are a share.
    """

    async def serialize(
        self,
        values: Sequence[np.ndarray],
        infos: Sequence[Any],
        args: Sequence[Any] | None = None,
    ) -> Sequence[Any]:
        """Starts to write the values; the future is done when they are written."""
        args = args or [ocp.SaveArgs()] * len(values)
        ocp.type_handlers.check_input_arguments(values, infos, args)

        async def write(value: np.ndarray, info: Any, arg: Any) -> None:
            await info.await_path_creation()
            spec = ocp.type_handlers.get_json_tspec_write(
                info,
                use_ocdbt=info.is_ocdbt_checkpoint,
                global_shape=value.shape,
                local_shape=value.shape,
                dtype=value.dtype,
                process_index=jax.process_index() if info.is_ocdbt_checkpoint else None,
                arg=arg,
            )
            store = await tensorstore.open(
                tensorstore.Spec(spec), create=True, open=True, context=info.ts_context
            )
            # The snapshot's arrays are nobody else's: no copy.
            await store.write(value, can_reference_source_data_indefinitely=True)

        async def write_all() -> None:
            await asyncio.gather(*map(write, values, infos, args))

        return [ocp.future.CommitFutureAwaitingContractedSignals(write_all(), name="hloom_share")]


@contextmanager
def _checkpointer() -> Iterator[ocp.Checkpointer]:
    """Orbax for this process alone: it neither waits for the others nor speaks to them."""
    me = jax.process_index()
    alone = ocp.options.MultiprocessingOptions(
        primary_host=me, active_processes={me}, barrier_sync_key_prefix=f"hloom_{me}"
    )
    handler = ocp.PyTreeCheckpointHandler(
        multiprocessing_options=alone,
        type_handler_registry=ocp.type_handlers.create_type_handler_registry(
            # None of the values is one, but without this Orbax logs a warning about them.
            (jax.Array, ocp.type_handlers.ArrayHandler(array_metadata_store=None)),
            (np.ndarray, _ShareHandler()),
        ),
    )
    with ocp.Checkpointer(handler, multiprocessing_options=alone) as checkpointer:
        yield checkpointer
