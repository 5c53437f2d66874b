"""What suspending a VM means for its node and pods, and what a preview says of it."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from milligpu.layouts.layout import CardLayout
from milligpu.layouts.machine_preview import MachinePreview, preview_machines, read_budgets
from milligpu.layouts.spec import parse_calendar, parse_layout
from milligpu.layouts.suspension import evicted_first, lease_problem, with_taints
from milligpu.model.names import SUSPENDED

NOW = datetime(2026, 11, 18, 7, 0, 30, tzinfo=UTC)
EXAMPLE = Path(__file__).parents[2] / "examples" / "layouts" / "worker-vms.yaml"
FOR_EVER = {"key": SUSPENDED, "operator": "Exists", "effect": "NoExecute"}


def pod(name: str, *tolerations: dict[str, Any], priority: int = 0, **meta: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "lab", **meta}
    return {"metadata": metadata, "spec": {"tolerations": list(tolerations), "priority": priority}, "status": {}}


def test_pods_that_tolerate_it_for_ever_stay_and_the_others_leave_in_the_order_of_their_priority() -> None:
    owner = {"kind": "DaemonSet", "controller": True}
    pods = [
        pod("kept", FOR_EVER),
        pod("all", {"operator": "Exists"}),
        pod("late", priority=10),
        pod("first"),
        pod("ending", deletionTimestamp="2026-11-18T07:00:00Z"),
        pod("for-a-while", {**FOR_EVER, "tolerationSeconds": 300}, priority=5),
        pod("not-this", {**FOR_EVER, "effect": "NoSchedule"}, priority=5),
        pod("daemon", ownerReferences=[owner]),
        pod("mirror", annotations={"kubernetes.io/config.mirror": "x"}),
        {**pod("ended"), "status": {"phase": "Succeeded"}},
    ]
    left, now = evicted_first(pods, keep=True)
    assert [each["metadata"]["name"] for each in left] == ["late", "first", "ending", "for-a-while", "not-this"]
    assert [each["metadata"]["name"] for each in now] == ["first"]
    everything, _ = evicted_first(pods, keep=False)
    assert {"kept", "all"} < {each["metadata"]["name"] for each in everything}


def test_a_taint_is_written_with_the_version_that_was_read_and_others_stay() -> None:
    other = {"key": "dedicated", "effect": "NoSchedule"}
    node = {"metadata": {"resourceVersion": "7"}, "spec": {"taints": [other]}}
    patch = with_taints(node, ("NoSchedule", "NoExecute"))
    assert patch is not None
    assert patch["metadata"] == {"resourceVersion": "7"}
    ours = [{"key": SUSPENDED, "effect": effect} for effect in ("NoSchedule", "NoExecute")]
    assert patch["spec"]["taints"] == [other, *ours]
    assert with_taints({**node, **patch}, ("NoSchedule", "NoExecute")) is None
    assert with_taints(node, ()) is None
    back = with_taints({**node, **patch, "metadata": {"resourceVersion": "8"}}, ())
    assert back is not None
    assert back["spec"]["taints"] == [other]


@pytest.mark.parametrize(
    ("renewed", "problem"),
    [
        (None, "its kubelet has no Lease"),
        (
            "2026-11-17T20:00:07.123456Z",
            "its kubelet has not renewed its Lease since 2026-11-17 20:00:07 UTC by its own clock",
        ),
        ("2026-11-18T07:00:20.000000Z", ""),
        ("2026-11-18T07:00:33.000000Z", ""),
        ("2026-11-18T09:00:30.000000Z", "its clock is 7200 s ahead"),
    ],
)
def test_a_node_is_back_when_its_kubelet_renews_its_lease_with_a_clock_in_step(
    renewed: str | None, problem: str
) -> None:
    assert lease_problem(renewed, NOW - timedelta(seconds=15), NOW) == problem


def example() -> dict[str, CardLayout]:
    found = [each for each in yaml.safe_load_all(EXAMPLE.read_text()) if each["kind"] == "GpuLayout"]
    return {each["metadata"]["name"]: parse_layout(each) for each in found}


def test_the_example_is_the_talks_scene() -> None:
    calendar = next(each for each in yaml.safe_load_all(EXAMPLE.read_text()) if each["kind"] == "GpuCalendar")
    assert set(parse_calendar(calendar, NOW).calendar.layouts) == set(example())
    running = {
        name: [each.name for each in found.machines if each.state == "running"] for name, found in example().items()
    }
    assert running == {"day": [f"worker-{n}" for n in (1, 2, 3, 4)], "night": ["worker-5"]}


def test_a_preview_says_vm_by_vm_what_is_done_to_which_pods_and_what_blocks_it() -> None:
    layouts = example()
    budget = {
        "metadata": {"namespace": "lab", "name": "service"},
        "spec": {"selector": {"matchLabels": {"app": "service"}}},
        "status": {"disruptionsAllowed": 0},
    }
    pods = {
        "worker-1": [pod("training", FOR_EVER), pod("notebook")],
        "worker-2": [pod("service-0", labels={"app": "service"})],
    }
    rows = preview_machines(layouts["night"], layouts["day"], pods, read_budgets([budget]))
    suspends = "suspends, with up to 4 GB of GPU memory to disk"
    assert rows == (
        MachinePreview("worker-1", "worker-1", suspends, ("lab/training",), ("lab/notebook",)),
        MachinePreview(
            "worker-2",
            "worker-2",
            suspends,
            (),
            ("lab/service-0",),
            ("PodDisruptionBudget lab/service allows no eviction of pod service-0",),
        ),
        MachinePreview("worker-3", "worker-3", suspends),
        MachinePreview("worker-4", "worker-4", suspends),
        MachinePreview("worker-5", "worker-5", "resumes"),
    )
    assert [each.action for each in preview_machines(layouts["day"], layouts["day"], {}, ())] == [
        *["stays running"] * 4,
        "stays suspended",
    ]
    unknown = preview_machines(layouts["day"], None, {}, ())[0]
    assert unknown.action == "becomes running (unknown now)"
