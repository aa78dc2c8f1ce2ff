"""The processes of `jax.distributed`, and the key-value store that they share."""

from __future__ import annotations

from typing import Any

import jax


class ProcessStore:
    """The key-value store of `jax.distributed`: all processes can read each value."""

    def __init__(self, client: Any) -> None:
        self._client = client

    @classmethod
    def find(cls) -> ProcessStore | None:
        """Returns the store; None where `jax.distributed.initialize` was not called."""
        from jax._src import distributed

        client = distributed.global_state.client
        return None if client is None else cls(client)

    def put(self, key: str, value: str) -> None:
        """Stores a value."""
        self._client.key_value_set(key, value)

    def get(self, key: str, timeout_s: float) -> str | None:
        """Waits for the value of a key and returns it; None where none was stored in time."""
        try:
            value: str = self._client.blocking_key_value_get(key, int(timeout_s * 1000))
        except jax.errors.JaxRuntimeError:
            return None
        return value

    def delete(self, key: str) -> None:
        """Deletes a value."""
        self._client.key_value_delete(key)


def process_number() -> int | None:
    """Returns this process's number among those of `jax.distributed`; None where it is alone."""
    from jax._src import distributed

    state = distributed.global_state
    return state.process_id if (state.num_processes or 1) > 1 else None


def coordinator_address() -> str | None:
    """Returns the coordinator's address in `jax.distributed`, "host:port"; None for one process."""
    from jax._src import distributed

    address: str | None = distributed.global_state.coordinator_address
    return address
