"""The placement of a module's partitions: the platform, the device and the process of each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Placement:
    """The placement of a module's partitions; a partition's index is its id in replica groups.

    Attributes:
      platform: "cpu", "cuda", or another platform's name in JAX.
      device_ordinals: by partition, the number of its device that XLA passes to custom calls,
        unique in a process.
      processes: by partition, the index of the process that runs it.
      process: the index of this process.
      compute_capability: of the devices, e.g. (9, 0); None if they are no CUDA devices.
    """

    platform: str
    device_ordinals: tuple[int, ...]
    processes: tuple[int, ...]
    process: int = 0
    compute_capability: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if len(self.device_ordinals) != len(self.processes):
            raise ValueError(
                f"{len(self.device_ordinals)} device ordinals for {len(self.processes)} partitions"
            )

    @classmethod
    def of_one_process(
        cls, platform: str, partitions: int, compute_capability: tuple[int, int] | None = None
    ) -> Placement:
        """Partitions on the devices of one process, in the devices' order."""
        ordinals = tuple(range(partitions))
        return cls(platform, ordinals, (0,) * partitions, 0, compute_capability)

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return len(self.processes)

    @property
    def spans_processes(self) -> bool:
        """Whether the partitions are in several processes."""
        return len(set(self.processes)) > 1

    def __str__(self) -> str:
        processes = len(set(self.processes))
        return (
            f"{self.platform}, {self.partitions} partition{'s' * (self.partitions > 1)} "
            f"in {processes} process{'es' * (processes > 1)}"
        )
