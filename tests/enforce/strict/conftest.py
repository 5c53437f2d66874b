"""Tenants on a driver that ends the process at the first forbidden call."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testing.strictcuda.build import build
from tests.enforce.strict.machine import StrictMachine


@pytest.fixture(scope="session")
def strict_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled driver."""
    return build(tmp_path_factory.mktemp("strict"))


StrictMachines = Callable[..., StrictMachine]


@pytest.fixture
def machine(strict_driver: Path, tmp_path: Path) -> Iterator[StrictMachines]:
    """Make machines of GPUs behind the strict driver."""
    made: list[StrictMachine] = []

    def make(gpus: int = 1, **options: int) -> StrictMachine:
        made.append(StrictMachine(tmp_path / f"machine{len(made)}", strict_driver, gpus, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()
