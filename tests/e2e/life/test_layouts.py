"""By day one share policy, by night another: a calendar on the real node, whose running tenants follow."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml

from devcluster.api import read_json
from devcluster.errors import DevclusterError
from devcluster.platform import GpuNode
from devcluster.wait import until
from milligpu.model import names
from milligpu.model.policy import SharePolicy
from tests.e2e.busy import start_busy, wait_busy, wait_for_shares
from tests.e2e.platform.pods import wait_running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

DEADLINE_S = 60.0
# One pod has three times the share of the other: by day each gets half of the GPU, by night what it requested.
PODS: dict[str, dict[str, Any]] = {
    "large": {"limits": {names.VGPU: 300}},
    "small": {"limits": {names.VGPU: 100}},
}


def layout(name: str, *cards: dict[str, Any]) -> dict[str, Any]:
    return {**_object("GpuLayout", name), "spec": {"cards": list(cards)}}


def calendar(name: str, **spec: Any) -> dict[str, Any]:
    return {**_object("GpuCalendar", name), "spec": spec}


def _object(kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": names.GROUP_VERSION, "kind": kind, "metadata": {"name": name}}


def apply(node: GpuNode, *objects: dict[str, Any]) -> None:
    node.cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))


def state(node: GpuNode, name: str) -> dict[str, Any]:
    return read_json(node.cluster.client, f"{names.CALENDARS_PATH}/{name}")


def in_force(node: GpuNode, name: str, wanted: str) -> None:
    """Wait until the layout holds and nothing is left to do."""

    def holds() -> bool:
        status = state(node, name).get("status", {})
        [ready] = status.get("conditions", [{"reason": ""}])
        return (status.get("layout"), ready["reason"]) == (wanted, "InForce")

    until(f"layout {wanted}", holds, 180, last_state=lambda: str(state(node, name).get("status")))


@pytest.fixture
def layouts(gpu_node: GpuNode) -> Iterator[None]:
    apply(gpu_node, layout("day", {"policy": "equal", "limit": 600}), layout("night", {"policy": "fixed"}))
    yield
    gpu_node.cluster.kubectl("delete", "gpucalendars,gpulayouts", "--all")
    until("the node to be as before", lambda: _present(gpu_node) == {(SharePolicy.BEST_EFFORT, 1000)}, DEADLINE_S)


def _present(node: GpuNode) -> set[tuple[SharePolicy, int]]:
    return {(gpu.policy, gpu.limit) for gpu in node.inventory()}


def near(node: GpuNode, namespace: str, what: str, ratio: float) -> None:
    """Wait for a stretch of time in which the large pod got `ratio` times the GPU time of the small one, about."""

    def wrong(got: dict[str, float]) -> dict[str, float]:
        return {} if abs(got["large"] / ratio - 1) < 0.25 else got

    wait_for_shares(node, namespace, "small", what, wrong)


def test_by_day_one_policy_by_night_another_and_running_tenants_follow(
    gpu_node: GpuNode, namespace: str, layouts: None
) -> None:
    del layouts
    start_busy(gpu_node.cluster, namespace, PODS)
    wait_running(gpu_node.cluster, namespace, 2)
    wait_busy(gpu_node, namespace, 2)
    # Night begins with a minute that is near enough to wait for, and far enough to see the day.
    dusk = (datetime.now(UTC) + timedelta(seconds=100)).replace(second=0, microsecond=0)
    dawn = dusk - timedelta(hours=1)
    window = {"days": ["Mon-Sun"], "from": f"{dawn:%H:%M}", "to": f"{dusk:%H:%M}", "layout": "day"}
    apply(gpu_node, calendar("campus", zone="UTC", default="night", windows=[window]))
    in_force(gpu_node, "campus", "day")
    assert _present(gpu_node) == {(SharePolicy.EQUAL, 600)}
    near(gpu_node, namespace, "halves by day", 1.0)
    status = state(gpu_node, "campus")["status"]
    assert datetime.fromisoformat(status["next"][0]["at"]) == dusk
    assert len(status["next"]) == 7

    in_force(gpu_node, "campus", "night")
    assert datetime.now(UTC) >= dusk
    assert _present(gpu_node) == {(SharePolicy.FIXED, 1000)}
    near(gpu_node, namespace, "shares by night", 3.0)
    found = state(gpu_node, "campus")["status"]
    assert [(each.get("from", ""), each["to"], each["phase"]) for each in found["history"]] == [
        ("day", "night", "Done"),
        ("", "day", "Done"),
    ]
    table = gpu_node.cluster.kubectl("get", "gpucalendars").splitlines()
    assert table[0].split() == ["NAME", "LAYOUT", "NEXT", "AT", "READY", "REASON", "AGE"]
    assert table[1].split()[:3] == ["campus", "night", "day"]


def test_what_the_api_server_and_the_webhook_refuse(gpu_node: GpuNode, layouts: None) -> None:
    del layouts
    window = {"days": ["Mon-Fri"], "from": "07:00", "to": "20:00", "layout": "day"}
    for bad, message in (
        (layout("x", {"policy": "fair"}), 'spec.cards[0].policy: Unsupported value: "fair"'),
        (layout("x", {"gpus": "model=V100"}), "one of policy, reserved and limit at least"),
        (layout("x", {"gpus": "colour=red", "limit": 1}), "spec.cards[0].gpus: invalid value 'colour=red'"),
        (
            calendar("x", zone="Berlin", default="night"),
            "spec.zone: invalid value 'Berlin': must be a name of the IANA",
        ),
        (
            calendar("x", default="night", windows=[window, {**window, "layout": "exam"}]),
            "must be without overlap with",
        ),
    ):
        with pytest.raises(DevclusterError) as refused:
            apply(gpu_node, bad)
        assert message in str(refused.value)


def test_only_the_scheduler_writes_a_nodes_layout(gpu_node: GpuNode) -> None:
    with pytest.raises(DevclusterError) as refused:
        gpu_node.cluster.kubectl("annotate", "node", gpu_node.node.name, f"{names.LAYOUT}={{}}")
    assert "may write the annotation milligpu.dev/layout; write a GpuCalendar instead" in str(refused.value)


def test_a_layout_that_is_missing_is_named_and_the_present_one_stays(gpu_node: GpuNode, layouts: None) -> None:
    del layouts
    apply(gpu_node, calendar("campus", default="night"))
    in_force(gpu_node, "campus", "night")
    apply(gpu_node, calendar("campus", default="exam"))

    def named() -> bool:
        [ready] = state(gpu_node, "campus")["status"]["conditions"]
        return (ready["reason"], ready["message"]) == ("LayoutGone", "layout exam does not exist")

    until("the condition", named, DEADLINE_S)
    assert _present(gpu_node) == {(SharePolicy.FIXED, 1000)}
