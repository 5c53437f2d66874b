"""Clusters are shared: few places start one, and the tests of a shared cluster are one group."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from devcluster.fixtures import GROUPS, group_of, pytest_collection_modifyitems, pytest_itemcollected

ROOT = Path(__file__).parents[2]
MAY_START_CLUSTERS = {
    "bench/agent.py",
    "bench/install.py",
    "bench/leader_change.py",
    "bench/scheduler.py",
    "devcluster/__main__.py",  # make cluster
    "devcluster/cluster.py",  # its own documentation
    "devcluster/fixtures.py",
    "testing/chaos/__main__.py",
    "tests/e2e/test_nothing_left.py",  # in a process that it kills
}


def item(*fixtures: str) -> Any:
    """A collected test, as far as groups look at it."""
    added: list[pytest.MarkDecorator] = []
    return SimpleNamespace(fixturenames=list(fixtures), add_marker=added.append, added=added)


def test_only_these_files_start_clusters() -> None:
    folders = ("bench", "devcluster", "examples", "testing", "tests")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    starting = {str(file.relative_to(ROOT)) for file in files if re.search(r"\bCluster\.start\(", file.read_text())}
    assert starting == MAY_START_CLUSTERS, "share a cluster of devcluster/fixtures.py instead: see CONTRIBUTING.md"


def test_a_test_is_in_the_group_of_its_cluster() -> None:
    test = item("namespace", "life_cluster")
    pytest_itemcollected(test)
    assert [mark.args for mark in test.added] == [("life",)]
    assert group_of(item("tmp_path")) is None


def test_a_module_that_puts_its_own_cluster_in_place_of_the_control_plane_is_in_the_group_of_its_own() -> None:
    assert group_of(item("control_plane", "guarded_plane")) == "admission"


def test_tests_with_clusters_of_their_own_come_last_and_on_any_worker() -> None:
    own, shared = item("built_programs", "new_cluster"), item("built_programs", "install_cluster")
    pytest_itemcollected(own)
    assert own.added == []
    items = [own, shared]
    pytest_collection_modifyitems(items)
    assert items == [shared, own]


def test_every_group_has_a_fixture(request: pytest.FixtureRequest) -> None:
    known = cast(Any, request)._fixturemanager._arg2fixturedefs
    assert set(GROUPS) <= set(known)
