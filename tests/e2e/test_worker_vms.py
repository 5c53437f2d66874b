"""Four worker VMs by day, one by night: a simulated vCenter. KWOK keeps the nodes Ready whatever their VM does."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from devcluster.api import read_json
from devcluster.cluster import Cluster
from devcluster.errors import DevclusterError
from devcluster.wait import until
from milligpu.model import names
from testing.vcenter import SimulatedVcenter, vcenter
from tests.e2e.test_admission import Admitting, admitting, apply, manifest, send_dry
from tests.e2e.test_scheduler import milligpu

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

DEADLINE_S = 120.0
QUARTER, WHOLE = "grid_v100-4q", "grid_v100-16q"
WORKERS = {"w1": "guarded-0", "w2": "guarded-1", "w3": "v100-0", "w4": "v100-1"}
NIGHT_NODE = "large-0"
DAY = {**dict.fromkeys(WORKERS, "poweredOn"), "w5": "suspended"}
NIGHT = {**dict.fromkeys(WORKERS, "suspended"), "w5": "poweredOn"}


@pytest.fixture(scope="module")
def control_plane(guarded: Cluster) -> Cluster:
    return guarded


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimulatedVcenter]:
    with vcenter(tmp_path_factory.mktemp("vcenter") / "login") as found:
        found.set(*((name, QUARTER, DAY[name]) for name in WORKERS), ("w5", WHOLE, DAY["w5"]))
        yield found


@pytest.fixture(scope="module", autouse=True)
def service(control_plane: Cluster, machines: SimulatedVcenter) -> Iterator[Admitting]:
    yield from admitting(control_plane, "--vsphere", str(machines.folder))


def layout(name: str, states: dict[str, str]) -> dict[str, Any]:
    nodes = {**WORKERS, "w5": NIGHT_NODE}
    words = {"poweredOn": "running", "suspended": "suspended"}
    found = [{"name": vm, "node": nodes[vm], "state": words[state]} for vm, state in states.items()]
    return {**_object("GpuLayout", name), "spec": {"machines": found}}


def _object(kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": names.GROUP_VERSION, "kind": kind, "metadata": {"name": name}}


@pytest.fixture
def campus(control_plane: Cluster) -> Iterator[datetime]:
    """A calendar whose day is now, and night in two hours; yields when the next day begins."""
    now = datetime.now(UTC).replace(second=0, microsecond=0)
    dawn, dusk = now - timedelta(hours=1), now + timedelta(hours=2)
    window = {"days": ["Mon-Sun"], "from": f"{dawn:%H:%M}", "to": f"{dusk:%H:%M}", "layout": "day"}
    # The nodes of VMs are those that layouts name; the calendar itself has the one of the night.
    spec = {
        "default": "night",
        "windows": [window],
        "nodeSelector": {"kubernetes.io/hostname": NIGHT_NODE},
        "deadlineSeconds": 300,
    }
    apply(control_plane, "default", layout("day", DAY), layout("night", NIGHT))
    apply(control_plane, "default", {**_object("GpuCalendar", "campus"), "spec": spec})
    in_force(control_plane, "day")
    yield dawn + timedelta(days=1)
    control_plane.kubectl("delete", "gpucalendars,gpulayouts", "--all")


def status(cluster: Cluster) -> dict[str, Any]:
    return read_json(cluster.client, f"{names.CALENDARS_PATH}/campus").get("status", {})


def in_force(cluster: Cluster, wanted: str, reason: str = "InForce") -> None:
    def holds() -> bool:
        [ready] = status(cluster).get("conditions", [{"reason": ""}])
        return (status(cluster).get("layout"), ready["reason"]) == (wanted, reason)

    until(f"layout {wanted}", holds, DEADLINE_S, last_state=lambda: str(status(cluster)))


def node(cluster: Cluster, name: str) -> dict[str, Any]:
    return read_json(cluster.client, f"/api/v1/nodes/{name}")


def effects(cluster: Cluster, name: str) -> set[str]:
    taints = node(cluster, name)["spec"].get("taints", ())
    return {each["effect"] for each in taints if each["key"] == names.SUSPENDED}


def suspended(cluster: Cluster, name: str) -> tuple[str, str]:
    conditions = node(cluster, name)["status"]["conditions"]
    return next(
        ((each["status"], each["message"]) for each in conditions if each["type"] == names.SUSPENDED_CONDITION),
        ("", ""),
    )


def share(name: str, where: str, **annotations: str) -> dict[str, Any]:
    found = manifest(name, {names.VGPU: 500}, annotations=annotations)
    found["spec"] |= {"tolerations": [], "nodeSelector": {"kubernetes.io/hostname": where}}
    return found


def pod(cluster: Cluster, namespace: str, name: str) -> dict[str, Any]:
    listed: list[dict[str, Any]] = read_json(cluster.client, f"/api/v1/namespaces/{namespace}/pods")["items"]
    return next((each for each in listed if each["metadata"]["name"] == name), dict[str, Any]())


def running(cluster: Cluster, namespace: str, name: str) -> dict[str, Any]:
    def runs() -> dict[str, Any] | None:
        found = pod(cluster, namespace, name)
        return found if found.get("status", {}).get("phase") == "Running" else None

    return until(f"pod {name} to run", runs, DEADLINE_S, last_state=lambda: str(pod(cluster, namespace, name)))


def test_four_vms_by_day_one_by_night_and_pods_that_ask_for_it_are_suspended_with_them(
    control_plane: Cluster, namespace: str, machines: SimulatedVcenter, campus: datetime
) -> None:
    apply(
        control_plane,
        namespace,
        share("training", "guarded-0", **{names.WHEN_SUSPENDED: "keep"}),
        share("notebook", "guarded-1"),
    )
    training = running(control_plane, namespace, "training")
    running(control_plane, namespace, "notebook")

    milligpu(control_plane, "layout", "switch", "campus", "night", "--watch")
    in_force(control_plane, "night")
    assert machines.states() == NIGHT
    assert {name: effects(control_plane, name) for name in (*WORKERS.values(), NIGHT_NODE)} == {
        **{name: {"NoSchedule", "NoExecute"} for name in WORKERS.values()},
        NIGHT_NODE: set(),
    }
    until_dawn = f"resumes at {campus:%a %H:%M} ({campus:%Y-%m-%dT%H:%M:%SZ})"
    said = f"The VM of this node is suspended by its layout: {until_dawn}"
    assert suspended(control_plane, "guarded-0") == ("True", said)
    kept = pod(control_plane, namespace, "training")
    assert kept["metadata"]["uid"] == training["metadata"]["uid"]
    assert "deletionTimestamp" not in kept["metadata"]
    assert pod(control_plane, namespace, "notebook") == {}

    apply(control_plane, namespace, share("morning", "guarded-0"))

    def explained() -> bool:
        return until_dawn in milligpu(control_plane, "explain", "morning", "-n", namespace)

    until("explain to say when", explained, DEADLINE_S)
    assert " Suspended (guarded-0" in milligpu(control_plane, "explain", "morning", "-n", namespace)

    milligpu(control_plane, "layout", "switch", "campus", "day", "--watch")
    in_force(control_plane, "day")
    assert machines.states() == DAY
    assert effects(control_plane, "guarded-0") == set()
    assert suspended(control_plane, "guarded-0")[0] == "False"
    assert effects(control_plane, NIGHT_NODE) == {"NoSchedule", "NoExecute"}
    running(control_plane, namespace, "morning")
    assert running(control_plane, namespace, "training")["metadata"]["uid"] == training["metadata"]["uid"]

    machines.fault("PowerOnVM_Task", "task", vm="w5", count=3, message="no host")
    milligpu(control_plane, "layout", "switch", "campus", "night", "--watch")
    in_force(control_plane, "day", "SwitchFailed")
    assert status(control_plane)["switch"]["message"] == "VM w5: GenericVmConfigFault: no host"
    assert machines.states() == DAY
    assert effects(control_plane, "guarded-0") == set()
    assert machines.refused() == []
    running(control_plane, namespace, "training")


def tolerated(found: dict[str, Any]) -> dict[str, int | None]:
    return {each["key"]: each.get("tolerationSeconds") for each in found["spec"]["tolerations"] if "key" in each}


def test_a_pod_or_its_namespace_says_what_becomes_of_it(control_plane: Cluster, namespace: str) -> None:
    away = dict.fromkeys(("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"), 300)
    kept = dict.fromkeys((*away, names.SUSPENDED))
    keep, drain = ({names.WHEN_SUSPENDED: value} for value in ("keep", "drain"))

    def admitted(**annotations: str) -> dict[str, int | None]:
        return tolerated(send_dry(control_plane, namespace, share("probe", "guarded-0", **annotations)))

    def plain(**annotations: str) -> dict[str, int | None]:
        found = manifest("probe", annotations=annotations)
        found["spec"]["tolerations"] = [{"key": "dedicated", "operator": "Exists"}]
        return tolerated(send_dry(control_plane, namespace, found))

    assert admitted() == away
    assert admitted(**keep) == kept
    assert plain(**keep) == {**kept, "dedicated": None}
    control_plane.kubectl("annotate", "namespace", namespace, f"{names.WHEN_SUSPENDED}=keep")
    until("the namespace to count", lambda: admitted() == kept, DEADLINE_S)
    assert admitted(**drain) == away
    for refused in (
        lambda: control_plane.kubectl(
            "annotate", "--overwrite", "namespace", namespace, f"{names.WHEN_SUSPENDED}=x"
        ),
        lambda: apply(control_plane, namespace, share("probe", "guarded-0", **{names.WHEN_SUSPENDED: "x"})),
    ):
        with pytest.raises(DevclusterError, match="keep or drain|must be"):
            refused()


def test_what_the_api_server_and_the_webhook_refuse_of_vms(control_plane: Cluster) -> None:
    machine = {"name": "w1", "state": "running"}
    for bad, message in (
        ([{**machine, "state": "paused"}], 'spec.machines[0].state: Unsupported value: "paused"'),
        ([{**machine, "profile": "v100-4q"}], "spec.machines[0].profile"),
        ([{"name": "w1", "state": "off"}], "a VM that is off keeps no pods"),
        ([machine, machine], "spec.machines[1]: Duplicate value"),
        (
            [machine, {**machine, "name": "w2", "node": "w1"}],
            "spec.machines[1].node: invalid value 'w1': must be another",
        ),
    ):
        with pytest.raises(DevclusterError) as refused:
            apply(control_plane, "default", {**_object("GpuLayout", "bad"), "spec": {"machines": bad}})
        assert message in str(refused.value)
