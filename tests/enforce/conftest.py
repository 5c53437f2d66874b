"""One card for all tests here; each test has its own tenant on it."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.enforce import rig


@pytest.fixture(scope="session")
def cards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rig.Cards]:
    """One software GPU."""
    with rig.cards(tmp_path_factory.mktemp("enforce")) as found:
        yield found


@pytest.fixture(scope="session")
def two_cards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rig.Cards]:
    """Two of them."""
    with rig.cards(tmp_path_factory.mktemp("enforce2"), devices=2) as found:
        yield found


Tenants = Callable[..., rig.Tenant]


@pytest.fixture
def tenant(cards: rig.Cards, tmp_path: Path) -> Iterator[Tenants]:
    """Make tenants on the one card."""
    made: list[rig.Tenant] = []

    def make(
        cap: int = rig.CAP, name: str = "tenant", on: rig.Cards = cards, uuids: Sequence[str] | None = None
    ) -> rig.Tenant:
        made.append(rig.tenant(tmp_path / name, on, cap, uuids))
        return made[-1]

    yield make
    for each in made:
        each.close()
