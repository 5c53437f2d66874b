from collections.abc import Iterator

import pytest

from testing.vcenter import SimulatedVcenter, vcenter


@pytest.fixture(scope="session")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedVcenter]:
    with vcenter(tmp_path_factory.mktemp("vcenter") / "login") as found:
        yield found
