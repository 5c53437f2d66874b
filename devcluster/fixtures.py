"""pytest fixtures: a few clusters that many tests share, and a namespace for every test.

Starting a cluster takes seconds, so tests share clusters. Each shared cluster is a session fixture with a
group in `GROUPS`. A test that uses the fixture, even through another fixture, joins the group. With
`--dist loadgroup` one worker runs all tests of a group, so each shared cluster is started only once. Tests
keep out of each other's way by namespaces, node selectors and scheduler names. A test may start clusters of
its own with `new_cluster`; such tests come last, on the worker that is free first.

Register with `pytest_plugins = ["devcluster.fixtures"]`. When a test fails, the last state of the clusters
it used is added to its report.
"""

import itertools
import os
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

import pytest
from lightkube.core.exceptions import ApiError
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace, Pod, ServiceAccount

from devcluster import build
from devcluster.cluster import Cluster, prepare
from devcluster.kwok import KwokNodes
from devcluster.report import to_stderr
from devcluster.wait import until

ACCOUNT_DEADLINE_S = 30.0
GROUPS = {
    "platform_cluster": "platform",
    "life_cluster": "life",
    "hurt_cluster": "hurt",
    "guarded_plane": "admission",
    "control_plane": "control",
    "install_cluster": "install",
}
"""The group of the tests that use a fixture. Groups start in this order, the longest first."""

_numbers = itertools.count(1)
_own_clusters = pytest.StashKey[list[Cluster]]()
_shared_clusters = pytest.StashKey[dict[str, Cluster]]()


class NewCluster(Protocol):
    """`Cluster.start` without the name."""

    def __call__(self, **options: Any) -> Cluster: ...


class NewKwokNodes(Protocol):
    """`Cluster.add_kwok_nodes` on `control_plane`; the nodes go when the test ends."""

    def __call__(self, count: int, **options: Any) -> KwokNodes: ...


@pytest.fixture(scope="session")
def built_programs(request: pytest.FixtureRequest) -> None:
    """Build the programs. On a new machine this takes minutes, so progress is shown even if output is captured."""
    capture: Any = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else ExitStack():
        prepare(to_stderr, real_nodes=True, kwok_nodes=True)


@pytest.fixture(scope="session")
def nvidia_toolkit(request: pytest.FixtureRequest) -> Path:
    """The directory with NVIDIA's own `nvidia-ctk` and `nvidia-cdi-hook`."""
    capture: Any = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else ExitStack():
        return build.binaries(build.NVIDIA, to_stderr)


@pytest.fixture(scope="session")
def control_plane(built_programs: None, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The cluster of group `control`: API server, controllers and scheduler. Tests must not rely on its nodes."""
    del built_programs
    with _shared(request, "control_plane") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def guarded_plane(built_programs: None, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The cluster of group `admission`: a control plane for tests that install policies and the webhook."""
    del built_programs
    with _shared(request, "guarded_plane") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def platform_cluster(built_programs: None, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The cluster of group `platform`: one real node, for tests that leave everything as they found it."""
    del built_programs
    with _shared(request, "platform_cluster", real_nodes=1) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def life_cluster(built_programs: None, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The cluster of group `life`: one real node, whose agent is upgraded, stopped and started."""
    del built_programs
    with _shared(request, "life_cluster", real_nodes=1) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def hurt_cluster(built_programs: None, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The cluster of group `hurt`: one real node; tests may kill anything that they start again."""
    del built_programs
    with _shared(request, "hurt_cluster", real_nodes=1) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def install_cluster(built_programs: None, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The cluster of group `install`: one real node and Services, and no milligpu until a test installs it."""
    del built_programs
    with _shared(request, "install_cluster", real_nodes=1) as cluster:
        cluster.start_services()
        yield cluster


@pytest.fixture(scope="session")
def real_cluster(control_plane: Cluster) -> Cluster:
    """The cluster of group `control` with a real node in it, which runs containers."""
    if not control_plane.nodes:
        control_plane.add_node()
    return control_plane


@pytest.fixture
def namespace(control_plane: Cluster) -> Iterator[str]:
    """A namespace of `control_plane` for this test alone, removed with all that is in it."""
    with new_namespace(control_plane) as name:
        yield name


@pytest.fixture
def kwok_cluster(control_plane: Cluster) -> Iterator[NewKwokNodes]:
    """Adds KWOK nodes to `control_plane`, where only pods land that ask for these very nodes."""
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
    """Starts clusters that belong to one test, which may change or break them."""
    del built_programs
    test: pytest.Item = cast(Any, request).node
    started: list[Cluster] = test.stash.setdefault(_own_clusters, [])
    with ExitStack() as stack:

        def start(**options: Any) -> Cluster:
            cluster = stack.enter_context(Cluster.start(unique_name(), **options))
            started.append(cluster)
            return cluster

        yield start


@contextmanager
def _shared(request: pytest.FixtureRequest, fixture: str, **options: Any) -> Generator[Cluster]:
    """Start the cluster of a group, which ends with the last test of the group, at the latest with the session."""
    with Cluster.start(unique_name(), **options) as cluster:
        request.config.stash.setdefault(_shared_clusters, {})[GROUPS[fixture]] = cluster
        yield cluster


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """Stop a cluster after the last test of its group: an idle one takes a tenth of a core from the others."""
    try:
        yield
    finally:
        group = group_of(item)
        if group is not None and (nextitem is None or group_of(nextitem) != group):
            cluster = item.config.stash.get(_shared_clusters, dict[str, Cluster]()).pop(group, None)
            if cluster is not None:
                cluster.stop()


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
    # Its controller would leave the pods running for five seconds, with the shares that the next test wants.
    cluster.client.deletecollection(Pod, namespace=name, grace_period=0)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Put a test that uses a shared cluster into its group, before xdist looks at groups."""
    group = group_of(item)
    if group is not None:
        item.add_marker(pytest.mark.xdist_group(group))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests by group, as workers take the groups in this order; those without a group come last."""
    order = [*GROUPS.values(), None]
    items.sort(key=lambda item: order.index(group_of(item)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse to run when xdist does not group: it marks a test's group in its id, or starts each cluster twice."""
    grouped = [item for item in session.items if group_of(item) is not None]
    if getattr(session.config.option, "loadgroup", False) and any("@" not in item.nodeid for item in grouped):
        raise pytest.UsageError("this pytest-xdist ignores groups with this pytest: see pyproject.toml")


def group_of(item: pytest.Item) -> str | None:
    """The group of the first fixture in `GROUPS` that the test uses; none for a test without a shared cluster."""
    used = _fixtures(item)
    return next((group for fixture, group in GROUPS.items() if fixture in used), None)


def _fixtures(item: pytest.Item) -> list[str]:
    return getattr(item, "fixturenames", [])


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
    """Return a name for a cluster; it contains the PID, so that parallel sessions do not collide."""
    return f"t{os.getpid()}-{next(_numbers)}"
