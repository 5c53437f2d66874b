"""One GPU for all tests here; each test has its own tenant on it."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.enforce import rig
from tests.enforce.rig import MEMORY_LIMIT, SoftGpus, Tenant


@pytest.fixture(scope="session")
def gpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SoftGpus]:
    """One software GPU."""
    with rig.soft_gpus(tmp_path_factory.mktemp("enforce")) as found:
        yield found


@pytest.fixture(scope="session")
def two_gpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SoftGpus]:
    """Two software GPUs."""
    with rig.soft_gpus(tmp_path_factory.mktemp("enforce2"), devices=2) as found:
        yield found


Tenants = Callable[..., Tenant]


@pytest.fixture
def tenant(gpus: SoftGpus, tmp_path: Path) -> Iterator[Tenants]:
    """Make tenants on the one GPU."""
    made: list[Tenant] = []

    def make(
        memory_limit: int = MEMORY_LIMIT,
        name: str = "tenant",
        on: SoftGpus = gpus,
        uuids: Sequence[str] | None = None,
    ) -> Tenant:
        made.append(rig.tenant(tmp_path / name, on, memory_limit, uuids))
        return made[-1]

    yield make
    for each in made:
        each.close()
