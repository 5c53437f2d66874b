"""A cluster with all of milligpu in place, as `make cluster` brings it up, for all tests of this folder."""

from collections.abc import Iterator

import pytest

from devcluster.cluster import Cluster
from devcluster.fixtures import unique_name
from devcluster.platform import Platform, install_platform
from tests.e2e.platform.pods import EVICT_AFTER_S


@pytest.fixture(scope="session")
def platform(built_programs: None) -> Iterator[Platform]:
    """Accounts, policies, webhook, scheduler service, and a real node with two cards and the agent."""
    with Cluster.start(unique_name(), real_nodes=1) as cluster:
        yield install_platform(cluster, f"--evict-after={EVICT_AFTER_S}", devices=2)


@pytest.fixture(scope="session")
def control_plane(platform: Platform) -> Cluster:
    """In place of the session's other cluster, so that `namespace` is one of this cluster's."""
    return platform.cluster
