"""Part 1: every test marked `gpu`, and the CUDA kernels under compute-sanitizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.gpu.items import Item, Known, Settings, result_of

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
LAUNCHES = 20
LISTED = "tests"
CHECKS = "checks of the kernels"


def batches(known: Known, settings: Settings) -> Iterator[Sequence[Item]]:
    """The list of the tests, each test, each tool of the sanitizer on each check of the kernels."""
    yield [
        Item(LISTED, "benchmarks.gpu.parts.checks:list_tests"),
        Item(CHECKS, "benchmarks.gpu.parts.checks:list_checks"),
    ]
    listed = result_of(known, LISTED) or {"tests": []}
    tests = listed["tests"][:1] if settings.dry_run else listed["tests"]
    yield [
        Item(
            f"test/{each}",
            "benchmarks.gpu.parts.checks:run_test",
            {"test": each},
            limit_s=310,
            needs_s=30,
        )
        for each in tests
    ]
    checks = result_of(known, CHECKS) or []
    driver = str(settings.fake_driver) if settings.fake_driver else None
    yield [
        Item(
            f"sanitizer/{tool}/{check}",
            "benchmarks.gpu.parts.checks:run_sanitizer",
            {
                "tool": tool,
                "check": check,
                "launches": LAUNCHES,
                "dry_run": settings.dry_run,
                "driver": driver,
            },
            limit_s=200,
            needs_s=30,
        )
        for check in (checks[:1] if settings.dry_run else checks)
        for tool in (TOOLS[:1] if settings.dry_run else TOOLS)
    ]
