"""The dashboard of a real cluster: a Kubernetes token opens it, and shows what that token may see."""

import http.client
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from devcluster.cluster import Cluster
from devcluster.fixtures import new_namespace
from devcluster.platform import account_kubeconfig
from milligpu.installation.chart import chart_objects
from tests.e2e.scheduling import share_pod

pytestmark = pytest.mark.e2e

ACCOUNT = "milligpu-dashboard"
MILLIGPU = str(Path(sys.executable).parent / "milligpu")


def served(kubeconfig: Path, folder: Path, *options: str) -> tuple["subprocess.Popen[str]", str]:
    """Start a dashboard of the cluster, and return the address that it prints."""
    command = [MILLIGPU, "dashboard", "--cluster", "--kubeconfig", str(kubeconfig), "--interval", "1"]
    command += ["--listen", "127.0.0.1:0", "--history", str(folder / "history.db"), *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ.copy())
    assert process.stderr is not None
    return process, process.stderr.readline().split()[-1]


@pytest.fixture
def waiting(control_plane: Cluster) -> Iterator[tuple[str, str]]:
    """Two namespaces with a pod each that waits for a GPU; nobody schedules them."""
    with new_namespace(control_plane) as mine, new_namespace(control_plane) as other:
        for namespace in (mine, other):
            control_plane.client.create(share_pod("train", 500, schedulerName="nobody"), namespace=namespace)
        yield mine, other


def chart_account(cluster: Cluster, namespace: str) -> Path:
    """A kubeconfig of the dashboard's account, with the permissions that the chart gives it and no others."""
    objects = chart_objects(namespace, "1.36.3", {"dashboard": {"enabled": True}})
    kinds = {"ServiceAccount", "ClusterRole", "ClusterRoleBinding"}
    mine = [each for each in objects if each["kind"] in kinds and each["metadata"]["name"] == ACCOUNT]
    assert len(mine) == len(kinds)
    cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(mine))
    return account_kubeconfig(cluster, ACCOUNT, namespace=namespace)


def ask(url: str, path: str, headers: dict[str, str]) -> tuple[int, Any, str]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    cookie = (answer.getheader("set-cookie") or "").partition(";")[0]
    is_json = answer.getheader("content-type") == "application/json"
    return answer.status, json.loads(text) if is_json else text, cookie


def namespaces(page: Any, *of: str) -> set[str]:
    return {each["namespace"] for each in page["waiting"]} & set(of)


def test_a_token_shows_the_pods_that_it_may_list_and_no_others(
    control_plane: Cluster, waiting: tuple[str, str], tmp_path: Path
) -> None:
    mine, other = waiting
    control_plane.kubectl("create", "role", "reader", "-n", mine, "--verb=list", "--resource=pods")
    control_plane.kubectl(
        "create", "rolebinding", "reader", "-n", mine, "--role=reader", f"--serviceaccount={mine}:default"
    )
    token = control_plane.kubectl("create", "token", "default", "-n", mine).strip()
    process, url = served(chart_account(control_plane, mine), tmp_path, "--tokens")
    try:
        status, page, _ = ask(url, "/waiting.json", {"Authorization": f"Bearer {token}"})
        assert status == 200
        assert namespaces(page, mine, other) == {mine}
        _, settings, _ = ask(url, "/settings.json", {"Authorization": f"Bearer {token}"})
        assert settings["user"] == f"system:serviceaccount:{mine}:default"
        assert settings["namespaces"] == [mine]
        status, text, _ = ask(url, "/", {"Authorization": f"Bearer {token}"})
        assert (status, other in text) == (200, False)
        assert ask(url, "/waiting.json", {"Authorization": "Bearer forged"})[0] == 401
        assert ask(url, "/waiting.json", {})[0] == 401
        assert ask(url, "/open?secret=", {})[0] == 401
    finally:
        process.terminate()
        process.communicate(timeout=30)
        control_plane.kubectl("delete", "clusterrole,clusterrolebinding", ACCOUNT)


def test_ones_own_dashboard_shows_what_ones_kubeconfig_may_see(
    control_plane: Cluster, waiting: tuple[str, str], tmp_path: Path
) -> None:
    process, url = served(control_plane.kubeconfig, tmp_path)
    try:
        _, _, cookie = ask(url, url.partition(urlsplit(url).netloc)[2], {})
        status, page, _ = ask(url, "/waiting.json", {"Cookie": cookie})
        assert status == 200
        assert namespaces(page, *waiting) == set(waiting)
        token = control_plane.kubectl("create", "token", "default", "-n", waiting[0]).strip()
        assert ask(url, "/waiting.json", {"Authorization": f"Bearer {token}"})[0] == 401
    finally:
        process.terminate()
        process.communicate(timeout=30)
