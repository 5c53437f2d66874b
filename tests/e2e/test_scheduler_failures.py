"""Whatever dies or hangs: nothing leaks, nothing is granted twice, and nobody has to help."""

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest
from lightkube.models.coordination_v1 import LeaseSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import Pod

from devcluster.cluster import Cluster
from devcluster.fixtures import NewKwokNodes
from devcluster.platform import SchedulerService
from devcluster.pods import node_name
from devcluster.wait import until
from milligpu.manifests.kube_scheduler import SECOND_SCHEDULER_GATES, second_scheduler
from tests.e2e.scheduling import gpu_nodes, grants, overcommitted, share_pod

pytestmark = pytest.mark.e2e


def wire(cluster: Cluster, namespace: str, name: str) -> dict[str, Any]:
    """A pod as kube-scheduler would send it."""
    return json.loads(cluster.kubectl("get", "pod", name, "-n", namespace, "-o", "json"))


def test_a_paused_leader_does_not_bind_over_the_next_one(
    control_plane: Cluster, kwok_cluster: NewKwokNodes, namespace: str
) -> None:
    nodes = gpu_nodes(kwok_cluster, 1, cards=1)
    (node,) = nodes.names
    for name in ("old", "new"):
        control_plane.client.create(share_pod(name, 600, nodes, schedulerName="by-hand"), namespace=namespace)
    # It nominates nobody: the test alone says who goes first.
    arguments = ("--namespace", namespace, "--scheduler-name", "nobody", "--lease-seconds", "3")
    first = SchedulerService(control_plane, "first", *arguments).start().wait_ready()
    second = SchedulerService(control_plane, "second", *arguments).start()
    old, new = wire(control_plane, namespace, "old"), wire(control_plane, namespace, "new")
    until("the standby to serve", lambda: httpx2.get(f"{second.url}/livez"), 30, retry=(httpx2.TransportError,))
    assert httpx2.get(f"{second.url}/leading").status_code == 503
    until("the standby to be ready", lambda: httpx2.get(f"{second.url}/readyz").status_code == 200, 30)
    assert first.post("filter", {"Pod": old, "NodeNames": [node]})["NodeNames"] == [node]

    os.kill(first.process.pid, signal.SIGSTOP)
    try:
        second.wait_ready()
        with ThreadPoolExecutor(1) as pool:
            late = pool.submit(first.post, "bind", bind_order(old, node))
            assert second.post("filter", {"Pod": new, "NodeNames": [node]})["NodeNames"] == [node]
            assert second.post("bind", bind_order(new, node)) == {}
            os.kill(first.process.pid, signal.SIGCONT)
            assert late.result()["Error"]
    finally:
        os.kill(first.process.pid, signal.SIGCONT)

    assert node_name(control_plane.client.get(Pod, "old", namespace=namespace)) == ""
    assert set(grants(control_plane, namespace)) == {"new"}
    assert second.post("filter", {"Pod": old, "NodeNames": [node]})["NodeNames"] == []
    for service in (first, second):
        service.process.stop()


def bind_order(found: dict[str, Any], node: str) -> dict[str, str]:
    meta = found["metadata"]
    return {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}


@pytest.fixture
def service(control_plane: Cluster, namespace: str) -> Iterator[SchedulerService]:
    """The service and two kube-schedulers that ask it."""
    arguments = ("--namespace", namespace, "--lease-seconds", "3", "--identity", "the-only-one")
    names = ("--scheduler-name", "one", "--scheduler-name", "two")
    service = SchedulerService(control_plane, "service", *arguments, *names).start().wait_ready()
    for name, gates in (("one", SECOND_SCHEDULER_GATES), ("two", None)):
        config = second_scheduler(service.url, name)
        config["podMaxBackoffSeconds"] = 2
        control_plane.start_scheduler(config, name, gates)
    yield service
    for name in ("one", "two"):
        control_plane.control_plane.stop_scheduler(name)
    service.process.stop()


def test_two_schedulers_and_a_service_that_is_killed_again_and_again_grant_nothing_twice(
    control_plane: Cluster, kwok_cluster: NewKwokNodes, namespace: str, service: SchedulerService
) -> None:
    cluster = control_plane
    nodes = gpu_nodes(kwok_cluster, 4, cards=4)
    # 16 cards, three of 300 on each: 44 pods need all but four places.
    names = [f"chaos-{number}" for number in range(44)]

    def create(number: int) -> None:
        asked = share_pod(names[number], 300, nodes, schedulerName=("one", "two")[number % 2])
        cluster.client.create(asked, namespace=namespace)

    with ThreadPoolExecutor(4) as pool:
        made = [pool.submit(create, number) for number in range(len(names))]
        for _ in range(6):
            bound = len(grants(cluster, namespace))
            service.process.kill()
            service.start().wait_ready()
            assert overcommitted(grants(cluster, namespace)) == []
            until("some progress", lambda bound=bound: _progress(cluster, namespace, bound, len(names)), 60)
        for each in made:
            each.result()

    until("every pod to be bound", lambda: len(grants(cluster, namespace)) == len(names), 120)
    assert overcommitted(grants(cluster, namespace)) == []
    # It also counts the pods of the test before, until they are gone.
    until("it to count these pods alone", lambda: _stages(service)["bound"] == len(names), 60)
    stages = _stages(service)
    assert stages["reserved"] + stages["nominated"] + stages["doubtful"] + stages["binding"] == 0


def _progress(cluster: Cluster, namespace: str, before: int, most: int) -> bool:
    now = len(grants(cluster, namespace))
    return now > before or now == most


def _stages(service: SchedulerService) -> dict[str, int]:
    text = httpx2.get(f"{service.url}/metrics").text
    lines = [line for line in text.splitlines() if line.startswith("milligpu_scheduler_pods{")]
    return {line.split('"')[1]: int(float(line.split()[-1])) for line in lines}


def test_an_api_server_that_is_away_for_three_seconds_costs_nothing_but_time(
    control_plane: Cluster, kwok_cluster: NewKwokNodes, namespace: str, service: SchedulerService
) -> None:
    cluster = control_plane
    nodes = gpu_nodes(kwok_cluster, 4, cards=4)
    for number in range(30):
        cluster.client.create(share_pod(f"away-{number}", 300, nodes, schedulerName="one"), namespace=namespace)

    cluster.control_plane.apiserver.kill()
    time.sleep(3)  # the length of the outage is what is tested
    cluster.control_plane.apiserver.start()
    cluster.control_plane.wait_ready()
    service.wait_ready()

    until("every pod to be bound", lambda: len(grants(cluster, namespace)) == 30, 150)
    assert overcommitted(grants(cluster, namespace)) == []
    # All the rest can still be had, to the last card: nothing leaked.
    for number in range(18):
        cluster.client.create(share_pod(f"rest-{number}", 300, nodes, schedulerName="two"), namespace=namespace)
    until("the rest to be bound", lambda: len(grants(cluster, namespace)) == 48, 120)
    assert overcommitted(grants(cluster, namespace)) == []
    assert len({grant.node for grant in grants(cluster, namespace).values()}) == len(nodes.names)


def test_the_service_leads_only_next_to_the_kube_scheduler_that_leads(
    control_plane: Cluster, namespace: str
) -> None:
    def hold(host: str) -> None:
        spec = {"holderIdentity": f"{host}_4711"}
        control_plane.kubectl("patch", "lease", "scheduler", "-n", namespace, "-p", json.dumps({"spec": spec}))

    control_plane.client.create(
        Lease(metadata=ObjectMeta(name="scheduler"), spec=LeaseSpec(holderIdentity="elsewhere_4711")),
        namespace=namespace,
    )
    arguments = ("--namespace", namespace, "--lease-seconds", "3", "--follow-lease", f"{namespace}/scheduler")
    service = SchedulerService(control_plane, "follower", *arguments).start()

    def answers(page: str, status: int) -> None:
        until(
            f"/{page} to answer {status}",
            lambda: httpx2.get(f"{service.url}/{page}").status_code == status,
            30,
            retry=(httpx2.TransportError,),
        )

    answers("readyz", 200)
    assert httpx2.get(f"{service.url}/leading").status_code == 503
    hold(socket.gethostname())
    answers("leading", 200)
    hold("elsewhere")
    answers("leading", 503)
    answers("readyz", 200)
