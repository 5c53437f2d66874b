"""pytest fixtures: one cluster for the whole session, a namespace for every test.

Starting a cluster costs seconds, so the session has one, which grows as tests ask for more: first the
control plane alone, then a real node, then KWOK nodes. Tests keep out of each other's way by namespaces,
node selectors and scheduler names. A test that breaks things on purpose starts a cluster of its own with
`new_cluster`.

Register with `pytest_plugins = ["devcluster.fixtures"]`. When a test fails, the last state of the clusters
it used is added to its report.
"""

import itertools
import os
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import pytest
from lightkube.core.exceptions import ApiError
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace, ServiceAccount

from devcluster.cluster import Cluster, prepare
from devcluster.kwok import KwokNodes
from devcluster.report import to_stderr
from devcluster.wait import until

ACCOUNT_DEADLINE_S = 30.0

_numbers = itertools.count(1)
_own_clusters = pytest.StashKey[list[Cluster]]()


class NewCluster(Protocol):
    """`Cluster.start` without the name."""

    def __call__(self, **options: Any) -> Cluster: ...


class NewKwokNodes(Protocol):
    """`Cluster.add_kwok_nodes` on the session's cluster; the nodes go when the test ends."""

    def __call__(self, count: int, **options: Any) -> KwokNodes: ...


@pytest.fixture(scope="session")
def built_programs(request: pytest.FixtureRequest) -> None:
    """The first session on a machine builds for minutes: let the person see it, captured output or not."""
    capture: Any = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else ExitStack():
        prepare(to_stderr, real_nodes=True, kwok_nodes=True)


@pytest.fixture(scope="session")
def control_plane(built_programs: None) -> Iterator[Cluster]:
    """The session's cluster: API server, controllers and scheduler; it may have nodes, count on none."""
    del built_programs
    with Cluster.start(unique_name()) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def real_cluster(control_plane: Cluster) -> Cluster:
    """The session's cluster with a real node in it, which runs containers."""
    if not control_plane.nodes:
        control_plane.add_node()
    return control_plane


@pytest.fixture
def namespace(control_plane: Cluster) -> Iterator[str]:
    """A namespace of the session's cluster for this test alone, removed with all that is in it."""
    with new_namespace(control_plane) as name:
        yield name


@pytest.fixture
def kwok_cluster(control_plane: Cluster) -> Iterator[NewKwokNodes]:
    """Adds KWOK nodes to the session's cluster, where only pods land that ask for these very nodes."""
    made: list[KwokNodes] = []

    def add(count: int, **options: Any) -> KwokNodes:
        nodes = control_plane.add_kwok_nodes(count, **options)
        made.append(nodes)
        return nodes

    yield add
    for nodes in made:
        control_plane.remove_kwok_nodes(nodes)


@pytest.fixture
def new_cluster(built_programs: None, request: pytest.FixtureRequest) -> Iterator[NewCluster]:
    """Starts clusters that belong to one test, which may do to them what it likes."""
    del built_programs
    started: list[Cluster] = request.node.stash.setdefault(_own_clusters, [])
    with ExitStack() as stack:

        def start(**options: Any) -> Cluster:
            cluster = stack.enter_context(Cluster.start(unique_name(), **options))
            started.append(cluster)
            return cluster

        yield start


@contextmanager
def new_namespace(cluster: Cluster) -> Generator[str]:
    """A namespace in any cluster, usable at once: its default service account is there."""
    name = f"test-{next(_numbers)}"
    cluster.client.create(Namespace(metadata=ObjectMeta(name=name)))
    until(
        f"the default service account of {name}",
        lambda: cluster.client.get(ServiceAccount, "default", namespace=name),
        ACCOUNT_DEADLINE_S,
        retry=(ApiError,),
    )
    yield name
    cluster.client.delete(Namespace, name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add what the clusters look like right now to the report of a test that failed."""
    report = yield
    if call.when == "call" and report.failed:
        values: dict[str, object] = getattr(item, "funcargs", {})
        used = {id(value): value for value in values.values() if isinstance(value, Cluster)}
        used |= {id(cluster): cluster for cluster in item.stash.get(_own_clusters, list[Cluster]())}
        namespace = values.get("namespace")
        for cluster in used.values():
            state = cluster.last_state(namespace if isinstance(namespace, str) else None)
            report.sections.append((f"cluster {cluster.name}", state))
    return report


def unique_name() -> str:
    """For a cluster. Names carry the pid: sessions side by side do not meet."""
    return f"t{os.getpid()}-{next(_numbers)}"
