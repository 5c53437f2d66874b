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

from devcluster.api import read_json
from devcluster.cluster import Cluster
from devcluster.fixtures import new_namespace
from devcluster.platform import account_kubeconfig
from milligpu.dashboard.idle_actions import IdleActions
from milligpu.history.samples import HistorySample
from milligpu.history.store import HistoryReader, HistoryStore
from milligpu.installation.chart import chart_objects
from milligpu.kube import config
from milligpu.model import names
from milligpu.status.picture import Picture, share_key
from milligpu.status.queue_values import ClusterQueues
from milligpu.wire.status import AcceleratorStats, ShareUsage
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


def chart_account(cluster: Cluster, namespace: str, *, act: bool = False) -> Path:
    """A kubeconfig of the dashboard's account, with the permissions that the chart gives it and no others."""
    objects = chart_objects(namespace, "1.36.3", {"dashboard": {"enabled": True, "act": act}})
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
        status, metrics, _ = ask(url, "/metrics", {"Authorization": f"Bearer {token}"})
        assert (status, "# TYPE milligpu_pod_verdict gauge" in metrics, other in metrics) == (200, True, False)
        assert ask(url, "/metrics", {})[0] == 401
        assert ask(url, "/waiting.json", {"Authorization": "Bearer forged"})[0] == 401
        assert ask(url, "/waiting.json", {})[0] == 401
        assert ask(url, "/open?secret=", {})[0] == 401
    finally:
        process.terminate()
        process.communicate(timeout=30)
        control_plane.kubectl("delete", "clusterrole,clusterrolebinding", ACCOUNT)


def idle_picture(namespace: str, queue: str, at: float) -> Picture:
    """Two pods that hold half a GPU each and do nothing, of which one is in a queue."""
    accelerator = AcceleratorStats("nvidia", "A100", "GPU-1", 1 << 30, 0, 0)
    shares = [
        ShareUsage(accelerator, 500, 500, 1024, namespace=namespace, pod=pod, container="main", utilization=0.0)
        for pod in ("train", "queued")
    ]
    queues = ClusterQueues(of_pods={(namespace, "queued"): (queue, "ana")})
    return Picture(at, "c", cluster=True, software=False, gpus=(), shares=shares, queues=queues)


def test_idle_pods_get_an_event_and_are_shrunk_only_where_that_was_asked_for(
    control_plane: Cluster, waiting: tuple[str, str], tmp_path: Path
) -> None:
    mine, other = waiting
    for namespace in waiting:
        control_plane.client.create(share_pod("queued", 500, schedulerName="nobody"), namespace=namespace)
    control_plane.kubectl("annotate", "namespace", mine, f"{names.IDLE_ACTION}=shrink", f"{names.IDLE_AFTER}=2m")
    control_plane.kubectl("annotate", "namespace", other, f"{names.IDLE_ACTION}=destroy")
    store = HistoryStore(tmp_path / "history.db")
    sample = HistorySample(10.0, (0.0, 0.5, 0.0, 0.5, 0.0, 0.0, 0.0))
    for seconds in range(0, 130, 10):
        keys = [share_key(use) for each in waiting for use in idle_picture(each, "", 0.0).shares]
        store.add(1_800_000_000.0 + seconds, dict.fromkeys(keys, sample))
    account = chart_account(control_plane, mine, act=True)
    cluster = config.find_cluster(str(account))
    actions = IdleActions(lambda: config.blocking_client(cluster), HistoryReader(store.path))
    problems: list[str] = []
    for _ in range(2):
        problems = actions.act(idle_picture(mine, "", 1_800_000_125.0))
        assert len(problems) == 1
        assert f"namespace {other}: milligpu.dev/idle-action" in problems[0]
    # Another process, such as this one after a restart, posts no second event on the same day.
    IdleActions(lambda: config.blocking_client(cluster), HistoryReader(store.path)).act(
        idle_picture(mine, "", 1_800_000_125.0)
    )
    assert actions.act(idle_picture(other, "", 1_800_000_125.0)) == problems
    pod = read_json(control_plane.client, f"/api/v1/namespaces/{mine}/pods/train")
    assert json.loads(pod["metadata"]["annotations"][names.RESIZE])["main"]["milli"] == 50
    events = read_json(control_plane.client, f"/api/v1/namespaces/{mine}/events")["items"]
    shrunk = [each for each in events if each["reason"] == "GPUShareShrunk"]
    assert sorted(each["involvedObject"]["name"] for each in shrunk) == ["queued", "train"]
    assert "did not use it for 2 min; its share is shrunk to 0.05" in shrunk[0]["message"]
    untouched = read_json(control_plane.client, f"/api/v1/namespaces/{other}/pods/train")["metadata"]
    assert names.RESIZE not in untouched.get("annotations", {})
    store.close()
    # The command says what people must mend, on every page.
    process, url = served(account, tmp_path, "--act")
    try:
        _, _, cookie = ask(url, url.partition(urlsplit(url).netloc)[2], {})
        status, text, _ = ask(url, "/settings", {"Cookie": cookie})
        assert (status, f"namespace {other}: {names.IDLE_ACTION}" in text) == (200, True)
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
