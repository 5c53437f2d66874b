"""A cluster with all of milligpu in place, as `make cluster` brings it up, for all tests of this folder."""

from collections.abc import Iterator

import pytest

from deploy.images import CLIENT, reference
from devcluster.cluster import Cluster
from devcluster.fixtures import new_namespace
from devcluster.platform import Platform, install_platform
from tests.e2e.platform.pods import AUDIT_EVERY_S, EVICT_AFTER_S, GPUS


@pytest.fixture(scope="session")
def platform(platform_cluster: Cluster) -> Platform:
    """Accounts, policies, webhook, scheduler service, and a real node with GPUs and the agent."""
    options = (f"--evict-after={EVICT_AFTER_S}", f"--audit-every={AUDIT_EVERY_S}")
    return install_platform(platform_cluster, *options, devices=GPUS, client_image=reference(CLIENT))


@pytest.fixture
def namespace(platform: Platform) -> Iterator[str]:
    """A namespace of this cluster for one test."""
    with new_namespace(platform.cluster) as name:
        yield name
