"""Manifests of every dialect on a real API server: admitted in one form, counted, placed, or refused with why."""

import asyncio
import base64
import json
import re
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
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import Pod

from devcluster.api import list_in, patch_in, read_json
from devcluster.cluster import Cluster
from devcluster.errors import DevclusterError
from devcluster.platform import NAMESPACE, SchedulerService, account_kubeconfig, free_port, install
from devcluster.wait import until
from milligpu import dialects
from milligpu.dialects.templates import pod_of_template
from milligpu.kube import config
from milligpu.kube.api import ApiClient
from milligpu.kube.watch import Watch
from milligpu.manifests.kube_scheduler import second_scheduler
from milligpu.manifests.mutating_policies import BINDING, POLICY, mutating_policies
from milligpu.manifests.rbac import SCHEDULER
from milligpu.manifests.webhook_configuration import CONFIGURATION, WebhookAddress
from milligpu.model import names
from milligpu.model.grant import GpuShare, Grant
from milligpu.model.names import CLASSES_PATH, QUEUES_PATH
from milligpu.model.request import ShareRequest
from milligpu.webhook.known_classes import KnownClasses
from milligpu.webhook.known_queues import KnownQueues
from milligpu.webhook.service import WebhookServer, WebhookSettings
from milligpu.wire.kubernetes import KubeGpuClass, KubeGpuQueue
from tests.e2e.caller import Caller
from tests.e2e.scheduling import grant_of, overcommitted
from tests.e2e.scheduling import grants as grants_now

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples" / "dialects").glob("*.yaml"))
NAME = "milligpu-admission"
DEADLINE_S = 60.0
VOID = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]


class Admitting(SchedulerService):
    """The service under its own account, with a webhook at an address that a configuration already names."""

    def __init__(self, cluster: Cluster, name: str, port: int, *more: str) -> None:
        self.webhook_port = port
        arguments = ("--scheduler-name", NAME, "--webhook-port", str(port), "--lease-seconds", "3", *more)
        account = account_kubeconfig(cluster, SCHEDULER)
        super().__init__(cluster, name, "--namespace", NAMESPACE, *arguments, kubeconfig=account)


@pytest.fixture(scope="module")
def control_plane(guarded: Cluster) -> Cluster:
    """A cluster that is guarded by policies: they would be in the way of those who use the other one."""
    return guarded


@pytest.fixture(scope="module")
def service(control_plane: Cluster) -> Iterator[Admitting]:
    """The service with its webhook and a kube-scheduler that asks it, for the module's tests."""
    yield from admitting(control_plane)


def admitting(cluster: Cluster, *more: str) -> Iterator[Admitting]:
    """The service with its webhook and a kube-scheduler that asks it, on a cluster with policies.

    `more` are options of the service.
    """
    port = free_port()
    install(cluster, webhook=WebhookAddress(NAMESPACE, url=f"https://127.0.0.1:{port}"))
    started = Admitting(cluster, "milligpu-webhook", port, *more)
    started.start().wait_ready()
    cluster.start_scheduler(second_scheduler(started.url, NAME), NAME)
    wait_trusted(cluster)
    yield started
    cluster.control_plane.stop_scheduler(NAME)
    started.process.stop()


def bundles(cluster: Cluster) -> list[str]:
    found: list[str] = []
    for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
        path = f"/apis/admissionregistration.k8s.io/v1/{kind}/{CONFIGURATION}"
        webhooks = read_json(cluster.client, path)["webhooks"]
        found += [each["clientConfig"].get("caBundle", "") for each in webhooks]
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
    return send_dry(cluster, "default", manifest("probe", limits))


def send_dry(cluster: Cluster, namespace: str, pod: dict[str, Any]) -> dict[str, Any]:
    """Ask what the API server would make of a pod; the answer, or the refusal as an error."""
    answer = Caller(cluster).send("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", pod)
    if answer.status_code != 201:
        raise DevclusterError(answer.text)
    return answer.json()


def apply(cluster: Cluster, namespace: str, *found: dict[str, Any]) -> str:
    text = "\n---\n".join(json.dumps(each) for each in found)
    return cluster.kubectl("apply", "-n", namespace, "-f", "-", stdin=text)


def get(cluster: Cluster, namespace: str, name: str, kind: str = "pod") -> dict[str, Any]:
    api = {"pod": "api/v1", "resourcequota": "api/v1", "sharepod": "apis/kubeshare.nthu/v1"}[kind]
    return read_json(cluster.client, f"/{api}/namespaces/{namespace}/{kind}s/{name}")


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
        asked = dialects.read_pod(pod_of_template(each["kind"], each))
        mine = {name: grant for name, grant in grants.items() if name.startswith(each["metadata"]["name"])}
        for name in [name for name in mine if is_of(name, each, found)]:
            admitted = get(control_plane, namespace, name)
            same = dialects.read_pod(admitted)
            assert (same.containers, same.requirements, same.group) == (
                asked.containers,
                asked.requirements,
                asked.group,
            )
            for container in asked.containers:
                check(container.share, mine[name].containers.get(container.name, ()))


def check(asked: ShareRequest | None, shares: Sequence[GpuShare]) -> None:
    assert len(shares) == (asked.count if asked else 0)
    for share in (each.share for each in shares):
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
    "[nvidia.com/vgpu]: invalid value '1500': must be from 1 to 1000, or a multiple": (
        {"nvidia.com/vgpu": 1500},
        {},
    ),
    "[tencent.com/vcuda-memory]: required: a number of blocks of 256 MiB": ({"tencent.com/vcuda-core": 30}, {}),
    "gpu-fraction: invalid value '1.5': must be a fraction of one GPU": ({}, {"gpu-fraction": "1.5"}),
    "a pod has one dialect": ({"nvidia.com/gpu": 1}, {"gpu-fraction": "0.5"}),
    "must be one of nvidia.com/gpu, ": ({"nvidia.com/gpu-mem": 1}, {}),
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
    until(
        "the quota's status",
        lambda: get(control_plane, namespace, "gpus", "resourcequota")["status"].get("used"),
        30,
    )

    apply(control_plane, namespace, manifest("kai", annotations={"gpu-fraction": "0.3"}))
    apply(control_plane, namespace, manifest("hami", {"nvidia.com/gpu": 2, "nvidia.com/gpucores": 20}))
    with pytest.raises(DevclusterError, match="exceeded quota: gpus"):
        apply(control_plane, namespace, manifest("whole", {"nvidia.com/gpu": 1}))
    with pytest.raises(DevclusterError, match="exceeded quota: gpus"):
        # 32 GiB are 409 thousandths of the largest card.
        apply(control_plane, namespace, manifest("memory", {"aliyun.com/gpu-mem": 32}))
    apply(control_plane, namespace, manifest("small", {"nvidia.com/vgpu": 300}))

    used = get(control_plane, namespace, "gpus", "resourcequota")["status"]["used"]
    assert used == {"requests.nvidia.com/vgpu": "1k"}


def test_a_container_without_a_share_sees_no_gpu(
    control_plane: Cluster, namespace: str, service: Admitting
) -> None:
    plain = manifest("plain")
    plain["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    shared = manifest("shared", {"nvidia.com/vgpu": 100})
    shared["spec"]["containers"].append({"name": "other", "image": "local.dev/base:1"})
    apply(control_plane, namespace, plain, shared)
    assert get(control_plane, namespace, "plain")["spec"]["containers"][0]["env"] == VOID
    main, other = get(control_plane, namespace, "shared")["spec"]["containers"]
    assert ("env" in main, other["env"]) == (False, VOID)
    debug(control_plane, namespace, "shared")

    control_plane.kubectl("label", "namespace", namespace, "milligpu.dev/admission=off")
    until("the label to count", lambda: exempt(control_plane, namespace), DEADLINE_S)


def debug(cluster: Cluster, namespace: str, name: str) -> None:
    """Add an ephemeral container to a pod; it must see no GPU."""
    joining = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "local.dev/base:1"}]}}
    arguments = ("patch", "pod", name, "-n", namespace, "--subresource=ephemeralcontainers", "-p")
    cluster.kubectl(*arguments, json.dumps(joining))
    assert get(cluster, namespace, name)["spec"]["ephemeralContainers"][0]["env"] == VOID


def exempt(cluster: Cluster, namespace: str) -> bool:
    found = send_dry(cluster, namespace, manifest("exempt"))
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
    assert all(each["env"] == VOID for each in found)


def test_what_a_quota_counted_stays_as_it_was(control_plane: Cluster, namespace: str, service: Admitting) -> None:
    apply(control_plane, namespace, manifest("p", {"aliyun.com/gpu-mem": 2}))
    greedy = 'milligpu.dev/shares={"main":{"mib":16384}}'
    with pytest.raises(DevclusterError, match="stay as they were at admission"):
        control_plane.kubectl("annotate", "--overwrite", "-n", namespace, "pod", "p", greedy)
    control_plane.kubectl("annotate", "-n", namespace, "pod", "p", "example.com/other=fine")


def webhook_calls(cluster: Cluster) -> dict[str, float]:
    """How often the API server has called each webhook of ours, as it counts itself."""
    text = Caller(cluster).send("GET", "/metrics", None).text
    found: dict[str, float] = {}
    for line in text.splitlines():
        called = re.match(r'apiserver_admission_webhook_admission_duration_seconds_count{.*name="([^"]*)"', line)
        if called and called[1].endswith(".milligpu.dev"):
            found[called[1]] = found.get(called[1], 0) + float(line.rpartition(" ")[2])
    return found


def test_without_the_webhook_only_pods_that_ask_for_gpus_are_held_up(
    control_plane: Cluster, namespace: str, service: Admitting
) -> None:
    service.process.kill()
    try:
        before = webhook_calls(control_plane)
        apply(control_plane, namespace, manifest("plain"))
        # No webhook was called, so nothing can have waited for one; GPUs are hidden all the same.
        assert webhook_calls(control_plane) == before
        assert get(control_plane, namespace, "plain")["spec"]["containers"][0]["env"] == VOID
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
        assert webhook_calls(control_plane)["gpus.milligpu.dev"] > before.get("gpus.milligpu.dev", 0)
    finally:
        service.start().wait_ready()
    wait_trusted(control_plane)
    apply(control_plane, namespace, manifest("a", {"nvidia.com/vgpu": 100}))


def test_pods_in_the_namespaces_of_nvidias_own_programs_see_all_gpus(
    control_plane: Cluster, service: Admitting
) -> None:
    control_plane.kubectl("create", "namespace", "gpu-operator")
    exporter = manifest("dcgm-exporter")
    exporter["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    until(
        "its service account",
        lambda: send_dry(control_plane, "gpu-operator", exporter),
        30,
        retry=(DevclusterError,),
    )
    found = send_dry(control_plane, "gpu-operator", exporter)
    control_plane.kubectl("delete", "namespace", "gpu-operator", "--wait=false")
    assert found["spec"]["containers"][0]["env"] == exporter["spec"]["containers"][0]["env"]


def copy_of(pod: dict[str, Any], name: str) -> dict[str, Any]:
    """What a backup tool restores: the pod without what the cluster gave it, but with its annotations."""
    spec = {key: value for key, value in pod["spec"].items() if key not in {"nodeName", "volumes"}}
    for container in spec["containers"]:
        container.pop("volumeMounts", None)
    notes = pod["metadata"]["annotations"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": notes}, "spec": spec}


def test_a_copy_of_a_pod_gets_a_grant_of_its_own(
    control_plane: Cluster, namespace: str, service: Admitting
) -> None:
    apply(control_plane, namespace, manifest("first", {"nvidia.com/vgpu": 300}))
    granted(control_plane, namespace, 1)
    debug = ("debug", "first", "-n", namespace, "--copy-to=copied", "--keep-annotations", "--attach=false")
    control_plane.kubectl(*debug, "--image=local.dev/base:1", "--container=debugger")
    restored = copy_of(get(control_plane, namespace, "first"), "restored")
    control_plane.kubectl("create", "-n", namespace, "-f", "-", stdin=json.dumps(restored))
    found = granted(control_plane, namespace, 3)
    uids = {name: get(control_plane, namespace, name)["metadata"]["uid"] for name in found}
    assert {name: grant.uid for name, grant in found.items()} == uids


def test_before_kubernetes_1_36_the_webhook_does_what_the_policies_do(
    control_plane: Cluster, namespace: str, service: Admitting
) -> None:
    address = WebhookAddress(NAMESPACE, url=f"https://127.0.0.1:{service.webhook_port}")
    policies = [each["metadata"]["name"] for each in mutating_policies(address) if each["kind"] == POLICY]
    for kind in (BINDING, POLICY):
        control_plane.kubectl("delete", kind, *policies)
    install(control_plane, webhook=address, mutating=False)
    try:
        wait_trusted(control_plane)
        plain = manifest("plain", annotations={names.GRANT: "{}"})
        plain["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]

        def hidden() -> bool:
            return send_dry(control_plane, namespace, plain)["spec"]["containers"][0]["env"] == VOID

        before = webhook_calls(control_plane).get("others.milligpu.dev", 0)
        until("the webhook to hide GPUs", hidden, DEADLINE_S, retry=(DevclusterError,))
        assert webhook_calls(control_plane)["others.milligpu.dev"] > before
        assert names.GRANT not in send_dry(control_plane, namespace, plain)["metadata"].get("annotations", {})
        apply(control_plane, namespace, manifest("debugged"))
        debug(control_plane, namespace, "debugged")
    finally:
        install(control_plane, webhook=address)
        wait_trusted(control_plane)
    until("the policies to hide GPUs", lambda: hidden_by_policy(control_plane, namespace), DEADLINE_S)


def hidden_by_policy(cluster: Cluster, namespace: str) -> bool:
    before = webhook_calls(cluster)
    found = send_dry(cluster, namespace, manifest("probe"))["spec"]["containers"][0]
    return found.get("env") == VOID and webhook_calls(cluster) == before


def test_a_removed_ca_is_added_to_the_configuration_again(control_plane: Cluster, service: Admitting) -> None:
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
    async with ApiClient(config.find_cluster(str(cluster.kubeconfig))) as api:
        classes = KnownClasses(api, Watch(api, CLASSES_PATH, KubeGpuClass))
        queues = KnownQueues(api, Watch(api, QUEUES_PATH, KubeGpuQueue))
        running = asyncio.create_task(
            WebhookServer(api, WebhookSettings("127.0.0.1", port), lambda: None, classes, queues, now=now).run()
        )
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


def test_a_standby_admits_pods_while_there_is_no_leader(control_plane: Cluster, service: Admitting) -> None:
    standby = Admitting(control_plane, "standby", free_port())
    standby.start()
    url = f"https://127.0.0.1:{standby.webhook_port}"
    until("the standby to serve", lambda: _answers(control_plane, url), DEADLINE_S, retry=(httpx2.TransportError,))
    assert httpx2.get(f"{standby.url}/leading").status_code == 503
    service.process.kill()
    # Else the standby leads after three seconds, and a slow machine needs longer for what follows.
    long = {"spec": {"leaseDurationSeconds": 600}}
    patch_in(control_plane.client, Lease, NAMESPACE, SCHEDULER, long)
    try:
        # What a Service does when one of its pods is gone.
        _point(control_plane, url)
        until("the API server to ask the standby", lambda: _admits(control_plane), DEADLINE_S)
        assert httpx2.get(f"{standby.url}/leading").status_code == 503
    finally:
        _point(control_plane, f"https://127.0.0.1:{service.webhook_port}")
        standby.process.stop()
        control_plane.client.delete(Lease, SCHEDULER, namespace=NAMESPACE)
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


def test_a_sharepod_runs_as_a_pod_that_has_its_status_and_ends_with_it(
    control_plane: Cluster, namespace: str, service: Admitting
) -> None:
    apply(control_plane, namespace, sharepod("s"))
    status = wait_phase(control_plane, namespace, "s", "Running")
    pod = control_plane.client.get(Pod, "s", namespace=namespace)
    grant = grant_of(pod)
    assert grant is not None
    assert status["boundDeviceID"] == grant.containers["main"][0].gpu
    assert (grant.containers["main"][0].share.milli, grant.containers["main"][0].share.mib) == (500, 1024)
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


def test_a_sharepod_that_gets_no_pod_says_why_in_its_status(
    control_plane: Cluster, namespace: str, service: Admitting
) -> None:
    with pytest.raises(DevclusterError, match=r"kubeshare/gpu_request: invalid value '1.5': must be a fraction"):
        apply(control_plane, namespace, sharepod("bad", "1.5"))
    apply(control_plane, namespace, manifest("taken"))
    apply(control_plane, namespace, sharepod("taken"))
    status = wait_phase(control_plane, namespace, "taken", "Pending")
    assert status["podStatus"]["message"] == "a pod of this name already exists"
    control_plane.kubectl("delete", "pod", "taken", "-n", namespace, "--grace-period=0", "--force")
    wait_phase(control_plane, namespace, "taken", "Running")
