"""Manifests of every dialect on a real API server: admitted in one form, counted, placed, or refused with why."""

import asyncio
import base64
import json
import ssl
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from lightkube.core.exceptions import ApiError
from lightkube.resources.core_v1 import Pod

from devcluster.api import list_in
from devcluster.cluster import Cluster
from devcluster.errors import DevclusterError
from devcluster.fixtures import unique_name
from devcluster.platform import NAMESPACE, SchedulerService, account_kubeconfig, free_port, install
from devcluster.wait import until
from milligpu import dialects
from milligpu.dialects.templates import pod_of
from milligpu.kube import config
from milligpu.kube.api import Api
from milligpu.model import names
from milligpu.model.grant import GpuShare, Grant
from milligpu.model.request import ShareRequest
from milligpu.scheduler.admission import Admission, Settings
from milligpu.scheduler.config import second_scheduler
from milligpu.scheduler.manifests import SCHEDULER
from milligpu.scheduler.webhook_objects import CONFIGURATION, Target
from tests.e2e.scheduling import grant_of, inventory, overcommitted
from tests.e2e.scheduling import grants as grants_now

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples" / "dialects").glob("*.yaml"))
NAME = "milligpu-admission"
DEADLINE_S = 60.0


class Admitting(SchedulerService):
    """The service under its own account, with a webhook at an address that a configuration already names."""

    def __init__(self, cluster: Cluster, name: str, port: int) -> None:
        self.webhook_port = port
        arguments = ("--scheduler-name", NAME, "--webhook-port", str(port), "--lease-seconds", "3")
        account = account_kubeconfig(cluster, SCHEDULER)
        super().__init__(cluster, name, "--namespace", NAMESPACE, *arguments, kubeconfig=account)


@pytest.fixture(scope="module")
def control_plane(built_programs: None) -> Iterator[Cluster]:
    """A cluster of the module's own: its webhook and policies would be in everybody's way."""
    with Cluster.start(unique_name()) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def service(control_plane: Cluster) -> Admitting:
    """The service with its webhook, a kube-scheduler that asks it, and nodes with GPUs, for the module's tests."""
    # Only a node's agent may write an inventory once the policies are in force.
    add_nodes(control_plane, 2, "Tesla V100-SXM2-16GB", 16384, {"vgpu.type": "v100-8q-8GB"})
    add_nodes(control_plane, 1, "NVIDIA A100-SXM4-80GB", 81920, {})
    port = free_port()
    install(control_plane, webhook=Target(NAMESPACE, url=f"https://127.0.0.1:{port}"))
    started = Admitting(control_plane, "milligpu-webhook", port)
    started.start().wait_ready()
    control_plane.start_scheduler(second_scheduler(started.url, NAME), NAME)
    wait_trusted(control_plane)
    return started


def add_nodes(cluster: Cluster, count: int, model: str, mib: int, labels: dict[str, str]) -> Any:
    def annotations(node: str) -> dict[str, str]:
        return {names.INVENTORY: inventory(node, 4, model, mib)}

    return cluster.add_kwok_nodes(count, resources={names.VGPU: "4000"}, labels=labels, each=annotations, taints=())


def bundles(cluster: Cluster) -> list[str]:
    found: list[str] = []
    for kind in ("mutatingwebhookconfiguration", "validatingwebhookconfiguration"):
        text = cluster.kubectl("get", kind, CONFIGURATION, "-o", "json")
        found += [each["clientConfig"].get("caBundle", "") for each in json.loads(text)["webhooks"]]
    return found


def wait_trusted(cluster: Cluster) -> None:
    """The API server uses the webhook once it admits a pod with a share; it is only asked, nothing is made."""
    until("authorities in the configuration", lambda: all(bundles(cluster)), DEADLINE_S)
    until("the webhook to answer", lambda: _admits(cluster), DEADLINE_S)


def manifest(name: str, limits: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    main = {"name": "main", "image": "local.dev/base:1", "resources": {"limits": limits or {}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **metadata},
        "spec": {"containers": [main], "tolerations": [{"operator": "Exists"}]},
    }


def dry_run(cluster: Cluster, limits: dict[str, Any]) -> dict[str, Any]:
    arguments = ("apply", "--dry-run=server", "-o", "json", "-f", "-")
    return json.loads(cluster.kubectl(*arguments, stdin=json.dumps(manifest("probe", limits))))


def apply(cluster: Cluster, namespace: str, *found: dict[str, Any]) -> str:
    text = "\n---\n".join(json.dumps(each) for each in found)
    return cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=text)


def get(cluster: Cluster, namespace: str, name: str, kind: str = "pod") -> dict[str, Any]:
    return json.loads(cluster.kubectl("get", kind, name, "-n", namespace, "-o", "json"))


def granted(cluster: Cluster, namespace: str, count: int) -> dict[str, Grant]:
    """The grants by pod name, once there are so many."""

    def all_granted() -> dict[str, Grant] | None:
        pods = list_in(cluster.client, Pod, namespace)
        grants = {str(pod.metadata.name): grant_of(pod) for pod in pods if pod.metadata is not None}
        known = {name: grant for name, grant in grants.items() if grant is not None}
        return known if len(known) == len(pods) == count else None

    return until(f"{count} grants", all_granted, DEADLINE_S)


def pods_of(found: dict[str, Any]) -> int:
    spec = found["spec"]
    return int(spec.get("parallelism", spec.get("replicas", 1)))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_each_dialects_example_gets_what_it_asks_for(
    path: Path, control_plane: Cluster, namespace: str, service: Admitting
) -> None:
    found: list[dict[str, Any]] = list(yaml.safe_load_all(path.read_text()))
    control_plane.kubectl("apply", "-n", namespace, "-f", str(path))

    grants = granted(control_plane, namespace, sum(map(pods_of, found)))

    # Those that have ended by now may have made room for others.
    assert overcommitted(grants_now(control_plane, namespace), 81920) == []
    for each in found:
        asked = dialects.read(pod_of(each["kind"], each))
        mine = {name: grant for name, grant in grants.items() if name.startswith(each["metadata"]["name"])}
        for name in [name for name in mine if is_of(name, each, found)]:
            admitted = get(control_plane, namespace, name)
            same = dialects.read(admitted)
            assert (same.containers, same.requirements, same.gang) == (
                asked.containers,
                asked.requirements,
                asked.gang,
            )
            for container in asked.containers:
                check(container.share, mine[name].containers.get(container.name, ()))


def check(asked: ShareRequest | None, shares: Sequence[GpuShare]) -> None:
    assert len(shares) == (asked.count if asked else 0)
    for share in shares:
        assert asked is not None
        assert asked.whole == share.whole
        if not share.whole:
            assert asked.milli in {None, share.milli}
            assert asked.mib in {None, share.mib}
            assert asked.limit in {None, share.limit}


def is_of(pod: str, owner: dict[str, Any], all_: list[dict[str, Any]]) -> bool:
    """Whether a pod is this object's, and not that of one with a longer name."""
    owners = [each["metadata"]["name"] for each in all_ if pod.startswith(each["metadata"]["name"])]
    return max(owners, key=len) == owner["metadata"]["name"]


BAD: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "[nvidia.com/vgpu]='1500': want 1 to 1000, or a multiple of 1000": ({"nvidia.com/vgpu": 1500}, {}),
    "[tencent.com/vcuda-memory]=None: want blocks of 256 MiB": ({"tencent.com/vcuda-core": 30}, {}),
    "gpu-fraction='1.5': want a fraction of one GPU": ({}, {"gpu-fraction": "1.5"}),
    "want one dialect in a pod": ({"nvidia.com/gpu": 1}, {"gpu-fraction": "0.5"}),
    "want one of nvidia.com/gpu, ": ({"nvidia.com/gpu-mem": 1}, {}),
}


@pytest.mark.parametrize("said", BAD)
def test_a_bad_request_is_refused_at_apply_with_how_to_write_it(
    said: str, control_plane: Cluster, namespace: str, service: Admitting
) -> None:
    limits, annotations = BAD[said]
    pod = manifest("bad", limits, annotations=annotations)
    template = {"metadata": {**pod["metadata"], "labels": {"a": "b"}}, "spec": pod["spec"]}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "bad"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template},
    }
    for each in (pod, deployment):
        with pytest.raises(DevclusterError) as caught:
            apply(control_plane, namespace, each)
        assert "denied the request" in str(caught.value)
        assert said in str(caught.value)


def test_an_ordinary_quota_counts_all_dialects(control_plane: Cluster, namespace: str, service: Admitting) -> None:
    hard = {"requests.nvidia.com/vgpu": "1000"}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus"}, "spec": {"hard": hard}}
    apply(control_plane, namespace, quota)
    until("the quota's status", lambda: get(control_plane, namespace, "gpus", "quota")["status"].get("used"), 30)

    apply(control_plane, namespace, manifest("kai", annotations={"gpu-fraction": "0.3"}))
    apply(control_plane, namespace, manifest("hami", {"nvidia.com/gpu": 2, "nvidia.com/gpucores": 20}))
    with pytest.raises(DevclusterError, match="exceeded quota: gpus"):
        apply(control_plane, namespace, manifest("whole", {"nvidia.com/gpu": 1}))
    with pytest.raises(DevclusterError, match="exceeded quota: gpus"):
        # 32 GiB are 409 thousandths of the largest card.
        apply(control_plane, namespace, manifest("memory", {"aliyun.com/gpu-mem": 32}))
    apply(control_plane, namespace, manifest("small", {"nvidia.com/vgpu": 300}))

    used = get(control_plane, namespace, "gpus", "quota")["status"]["used"]
    assert used == {"requests.nvidia.com/vgpu": "1k"}


def test_a_container_without_a_share_sees_no_gpu(
    control_plane: Cluster, namespace: str, service: Admitting
) -> None:
    plain = manifest("plain")
    plain["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    shared = manifest("shared", {"nvidia.com/vgpu": 100})
    shared["spec"]["containers"].append({"name": "other", "image": "local.dev/base:1"})
    apply(control_plane, namespace, plain, shared)
    void = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    assert get(control_plane, namespace, "plain")["spec"]["containers"][0]["env"] == void
    main, other = get(control_plane, namespace, "shared")["spec"]["containers"]
    assert ("env" in main, other["env"]) == (False, void)

    joining = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "local.dev/base:1"}]}}
    arguments = ("patch", "pod", "shared", "-n", namespace, "--subresource=ephemeralcontainers", "-p")
    control_plane.kubectl(*arguments, json.dumps(joining))
    assert get(control_plane, namespace, "shared")["spec"]["ephemeralContainers"][0]["env"] == void

    control_plane.kubectl("label", "namespace", namespace, "milligpu.dev/admission=off")
    until("the label to count", lambda: exempt(control_plane, namespace), DEADLINE_S)


def exempt(cluster: Cluster, namespace: str) -> bool:
    arguments = ("apply", "-n", namespace, "--dry-run=server", "-o", "json", "-f", "-")
    found = json.loads(cluster.kubectl(*arguments, stdin=json.dumps(manifest("exempt"))))
    return "env" not in found["spec"]["containers"][0]


def test_the_largest_of_pods_is_neither_held_up_nor_misread(
    control_plane: Cluster, namespace: str, service: Admitting
) -> None:
    large = manifest("large", annotations={f"example.com/{number}": "x" * 500 for number in range(400)})
    large["spec"]["containers"][0]["args"] = ["x" * 300_000, "y" * 300_000]
    large["spec"]["containers"] += [{"name": f"c{number}", "image": "local.dev/base:1"} for number in range(100)]
    # The server's copy only: kubectl would keep a second one in an annotation.
    control_plane.kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(large))
    found = get(control_plane, namespace, "large")["spec"]["containers"]
    assert all(each["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}] for each in found)


def test_a_class_is_a_resource_that_only_we_know(
    control_plane: Cluster, namespace: str, service: Admitting
) -> None:
    apply(control_plane, namespace, manifest("gold", {"gpu-gold": 1}))
    found = get(control_plane, namespace, "gold")
    assert found["metadata"]["annotations"]["milligpu.dev/class"] == "gold"
    assert found["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/vgpu": "1k"}


def test_what_a_quota_counted_stays_as_it_was(control_plane: Cluster, namespace: str, service: Admitting) -> None:
    apply(control_plane, namespace, manifest("p", {"aliyun.com/gpu-mem": 2}))
    greedy = 'milligpu.dev/shares={"main":{"mib":16384}}'
    with pytest.raises(DevclusterError, match="stay as they were at admission"):
        control_plane.kubectl("annotate", "--overwrite", "-n", namespace, "pod", "p", greedy)
    control_plane.kubectl("annotate", "-n", namespace, "pod", "p", "example.com/other=fine")


def test_without_the_webhook_only_pods_that_ask_for_gpus_are_held_up(
    control_plane: Cluster, namespace: str, service: Admitting
) -> None:
    service.process.kill()
    try:
        apply(control_plane, namespace, manifest("plain"))
        for number, asked in enumerate(
            (
                manifest("a", {"nvidia.com/vgpu": 100}),
                manifest("b", labels={"sharedgpu/gpu_limit": "0.5"}),
                manifest("c", annotations={"kubeshare/gpu_limit": "0.5"}),
            )
        ):
            with pytest.raises(DevclusterError, match="failed calling webhook"):
                apply(control_plane, namespace, asked)
            with pytest.raises(ApiError):
                control_plane.client.get(Pod, "abc"[number], namespace=namespace)
    finally:
        service.start().wait_ready()
    wait_trusted(control_plane)
    apply(control_plane, namespace, manifest("a", {"nvidia.com/vgpu": 100}))


def test_trust_that_was_taken_out_comes_back(control_plane: Cluster, service: Admitting) -> None:
    for kind in ("mutatingwebhookconfiguration", "validatingwebhookconfiguration"):
        empty = [{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": ""}]
        control_plane.kubectl("patch", kind, CONFIGURATION, "--type=json", "-p", json.dumps(empty))
    wait_trusted(control_plane)
    for each in bundles(control_plane):
        assert b"BEGIN CERTIFICATE" in base64.b64decode(each)


def test_the_next_certificate_takes_over_without_a_refused_call(control_plane: Cluster, service: Admitting) -> None:
    service.process.stop()
    try:
        seen = asyncio.run(rotate(control_plane, service.webhook_port))
    finally:
        service.start().wait_ready()
    wait_trusted(control_plane)
    assert len(seen) == 2


async def rotate(cluster: Cluster, port: int) -> set[str]:
    """The certificates that were served, while pods with shares were admitted all the time."""
    behind = timedelta(days=61)  # a certificate that was made then is due for its next one now

    def now() -> datetime:
        return datetime.now(UTC) - behind

    seen: set[str] = set()
    async with Api(config.find(str(cluster.kubeconfig))) as api:
        running = asyncio.create_task(Admission(api, Settings("127.0.0.1", port), lambda: None, now).run())
        await asyncio.to_thread(wait_trusted, cluster)
        behind = timedelta(0)
        async with asyncio.timeout(DEADLINE_S):
            while len(seen) < 2:
                await asyncio.to_thread(dry_run, cluster, {"nvidia.com/vgpu": "1"})
                seen.add(await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port)))
        until_alone = datetime.now(UTC) + timedelta(seconds=3)  # by then only the second one serves
        while datetime.now(UTC) < until_alone:
            await asyncio.to_thread(dry_run, cluster, {"nvidia.com/vgpu": "1"})
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
    return seen


def test_a_standby_admits_while_nobody_leads(control_plane: Cluster, service: Admitting) -> None:
    standby = Admitting(control_plane, "standby", free_port())
    standby.start()
    url = f"https://127.0.0.1:{standby.webhook_port}"
    until("the standby to serve", lambda: _answers(control_plane, url), DEADLINE_S, retry=(httpx2.TransportError,))
    assert httpx2.get(f"{standby.url}/readyz").status_code == 503
    service.process.kill()
    try:
        # What a Service does when one of its pods is gone.
        _point(control_plane, url)
        until("the API server to ask the standby", lambda: _admits(control_plane), 3.0)
        assert httpx2.get(f"{standby.url}/readyz").status_code == 503
    finally:
        _point(control_plane, f"https://127.0.0.1:{service.webhook_port}")
        standby.process.stop()
        service.start().wait_ready()
        wait_trusted(control_plane)


def _answers(cluster: Cluster, url: str) -> bool:
    """With a certificate that the configuration trusts."""
    known = ssl.create_default_context(cadata=base64.b64decode(bundles(cluster)[0]).decode())
    return httpx2.post(f"{url}/admit", content=b"{}", verify=known, timeout=5).status_code == 400


def _admits(cluster: Cluster) -> bool:
    try:
        dry_run(cluster, {"nvidia.com/vgpu": "1"})
    except DevclusterError:
        return False
    return True


def _point(cluster: Cluster, url: str) -> None:
    for kind in ("mutatingwebhookconfiguration", "validatingwebhookconfiguration"):
        found = json.loads(cluster.kubectl("get", kind, CONFIGURATION, "-o", "json"))
        changes = [
            {"op": "replace", "path": f"/webhooks/{at}/clientConfig/url", "value": f"{url}/admit"}
            for at in range(len(found["webhooks"]))
        ]
        cluster.kubectl("patch", kind, CONFIGURATION, "--type=json", "-p", json.dumps(changes))


# -- SharePods -----------------------------------------------------------------------------------------------------


def sharepod(name: str, request: str = "0.5", **spec: Any) -> dict[str, Any]:
    notes = {"kubeshare/gpu_request": request, "kubeshare/gpu_limit": "1.0", "kubeshare/gpu_mem": "1073741824"}
    main = {"name": "main", "image": "local.dev/base:1"}
    return {
        "apiVersion": "kubeshare.nthu/v1",
        "kind": "SharePod",
        "metadata": {"name": name, "annotations": notes, "labels": {"team": "a"}},
        "spec": {"containers": [main], **spec},
    }


def share_status(cluster: Cluster, namespace: str, name: str) -> dict[str, Any]:
    return get(cluster, namespace, name, "sharepod").get("status", {})


def wait_phase(cluster: Cluster, namespace: str, name: str, phase: str) -> dict[str, Any]:
    def status() -> dict[str, Any] | None:
        found = share_status(cluster, namespace, name)
        return found if found.get("podStatus", {}).get("phase") == phase else None

    return until(f"SharePod {name} to be {phase}", status, DEADLINE_S)


def test_a_sharepod_runs_as_a_pod_tells_its_status_and_takes_it_along(
    control_plane: Cluster, namespace: str, service: Admitting
) -> None:
    apply(control_plane, namespace, sharepod("s"))
    status = wait_phase(control_plane, namespace, "s", "Running")
    pod = control_plane.client.get(Pod, "s", namespace=namespace)
    grant = grant_of(pod)
    assert grant is not None
    assert status["boundDeviceID"] == grant.containers["main"][0].gpu
    assert (grant.containers["main"][0].milli, grant.containers["main"][0].mib) == (500, 1024)
    assert get(control_plane, namespace, "s")["metadata"]["labels"]["team"] == "a"

    control_plane.kubectl("delete", "sharepod", "s", "-n", namespace)
    until("its pod to go", lambda: not list_in(control_plane.client, Pod, namespace), DEADLINE_S)


def test_sharepods_survive_the_death_of_the_service(
    control_plane: Cluster, namespace: str, service: Admitting
) -> None:
    apply(control_plane, namespace, sharepod("before"))
    wait_phase(control_plane, namespace, "before", "Running")
    service.process.kill()
    # The validating webhook is away, too: the SharePod is accepted, and its pod follows.
    apply(control_plane, namespace, sharepod("during"))
    control_plane.client.delete(Pod, "before", namespace=namespace, grace_period=0)
    service.start().wait_ready()
    for name in ("before", "during"):
        wait_phase(control_plane, namespace, name, "Running")
        until(f"pod {name}", lambda name=name: name in granted(control_plane, namespace, 2), DEADLINE_S)
    wait_trusted(control_plane)


def test_a_sharepods_node_is_the_schedulers_to_find(
    control_plane: Cluster, namespace: str, service: Admitting
) -> None:
    node = json.loads(control_plane.kubectl("get", "nodes", "-l", "vgpu.type", "-o", "json"))["items"][1]
    name = node["metadata"]["name"]
    apply(control_plane, namespace, sharepod("here", nodeName=name))
    wait_phase(control_plane, namespace, "here", "Running")
    assert granted(control_plane, namespace, 1)["here"].node == name


def test_the_services_account_creates_no_other_pods(
    control_plane: Cluster, namespace: str, service: Admitting
) -> None:
    # In the administrators' group, so that nothing but the policy is in the way.
    account = ("--as=system:serviceaccount:milligpu:milligpu-scheduler", "--as-group=system:masters")
    create = (*account, "create", "-n", namespace, "-f", "-")
    with pytest.raises(DevclusterError, match="creates the pods of SharePods, and no others"):
        control_plane.kubectl(*create, stdin=json.dumps(manifest("p")))
    owner = {"apiVersion": "kubeshare.nthu/v1", "kind": "SharePod", "name": "s", "uid": "u", "controller": True}
    control_plane.kubectl(*create, stdin=json.dumps(manifest("p", ownerReferences=[owner])))


def test_a_sharepod_that_cannot_be_says_why_in_its_status(
    control_plane: Cluster, namespace: str, service: Admitting
) -> None:
    with pytest.raises(DevclusterError, match=r"kubeshare/gpu_request='1.5': want a fraction"):
        apply(control_plane, namespace, sharepod("bad", "1.5"))
    apply(control_plane, namespace, manifest("taken"))
    apply(control_plane, namespace, sharepod("taken"))
    status = wait_phase(control_plane, namespace, "taken", "Pending")
    assert status["podStatus"]["message"] == "a pod of this name is there already"
    control_plane.kubectl("delete", "pod", "taken", "-n", namespace, "--grace-period=0", "--force")
    wait_phase(control_plane, namespace, "taken", "Running")
