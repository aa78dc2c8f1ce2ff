"""Part 4: hloom's kernels with ranks as streams of one GPU, and through JAX on all GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from benchmarks.gpu.items import Item, Known, Settings, result_of

CHECKS = "streams/checks"
LAUNCHES = 1000
DRY_LAUNCHES = 10

_STREAMS = ("barrier_latency", "exchange_rate", "two_runs", "empty_slice")
_JAX = ("exchange_is_right", "two_runs", "host_error", "exchange_latency")
_DRY_DEVICES = 4
_WAIT_S, _DRY_WAIT_S = 40, 1
"""Longer than the checks' own timeout."""


def batches(known: Known, settings: Settings) -> Iterator[Sequence[Item]]:
    """The kernels by the driver alone; XLA with them; last what may leave a GPU in a bad state."""
    environment: Mapping[str, str] = {}
    if settings.fake_driver is not None:
        environment = {"LD_LIBRARY_PATH": str(settings.fake_driver)}
    launches = DRY_LAUNCHES if settings.dry_run else LAUNCHES
    can_launch = not settings.dry_run or settings.fake_driver is not None
    if can_launch:
        yield [Item(CHECKS, "benchmarks.gpu.parts.checks:list_checks")]
        yield [
            Item(
                f"streams/check/{check}",
                "benchmarks.gpu.parts.streams:run_check",
                {"check": check, "launches": launches},
                environment=environment,
            )
            for check in result_of(known, CHECKS) or []
        ]
        yield [
            Item(
                f"streams/{name}",
                f"benchmarks.gpu.parts.streams:{name}",
                {"tiny": settings.dry_run},
                environment=environment,
            )
            for name in _STREAMS
        ]
    devices = f"--xla_force_host_platform_device_count={_DRY_DEVICES}"
    yield [
        Item(
            f"jax/{name}",
            f"benchmarks.gpu.parts.exchanges:{name}",
            {"tiny": settings.dry_run},
            environment={"XLA_FLAGS": devices} if settings.dry_run else {},
        )
        for name in _JAX
    ]
    if can_launch:
        wait_s = _DRY_WAIT_S if settings.dry_run else _WAIT_S
        yield [
            Item(
                "streams/missing_rank",
                "benchmarks.gpu.parts.streams:missing_rank",
                {"wait_s": wait_s},
                environment=environment,
            )
        ]
        yield [
            Item(
                "streams/after the missing rank",
                "benchmarks.gpu.parts.streams:run_check",
                {"check": "barriers_hold", "launches": launches},
                environment=environment,
            )
        ]
