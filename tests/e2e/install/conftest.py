"""One cluster for all tests of the installation."""

import pytest

from devcluster.cluster import Cluster
from tests.e2e.install.installation import Installation


@pytest.fixture(scope="session")
def bare(install_cluster: Cluster) -> Installation:
    """The cluster, and what it had before anything was installed."""
    made = Installation(install_cluster)
    made.prepare()
    return made


@pytest.fixture
def installation(bare: Installation) -> Installation:
    """The cluster with the chart, as the README installs it."""
    bare.install()
    return bare
