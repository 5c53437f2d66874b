"""The normal form: the same request, counted by Kubernetes, and stable."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milligpu import dialects
from milligpu.dialects.normal import NormalForm, normalize
from milligpu.dialects.patch import Operation, json_patch
from milligpu.model import names
from milligpu.model.errors import BadRequest
from milligpu.model.request import PodRequest, ShareRequest
from milligpu.model.units import Mib, Milli
from tests.dialects.golden import Case, cases

MEANT = [case for case in cases() if case.means is not None]
FORM = NormalForm(largest_gpu=Mib(16384), scheduler="ours")


def by_name(case: Case) -> str:
    return f"{case.file}: {case.name}"


def apply(document: Any, operations: list[Operation]) -> Any:
    """RFC 6902, as far as we write it."""
    document = copy.deepcopy(document)
    for operation in operations:
        *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        target = document
        for part in parents:
            target = target[int(part) if isinstance(target, list) else part]
        key = int(last) if isinstance(target, list) else last
        if operation["op"] == "remove":
            del target[key]
        else:
            assert (operation["op"] == "replace") == (isinstance(target, list) or key in target)
            target[key] = operation["value"]
    return document


@pytest.mark.parametrize("case", MEANT, ids=by_name)
def test_a_normalized_pod_is_the_same_request(case: Case) -> None:
    assert dialects.read_pod(normalize(case.pod, FORM)) == dialects.read_pod(case.pod)


@pytest.mark.parametrize("case", MEANT, ids=by_name)
def test_a_normalized_pod_stays_as_it_is(case: Case) -> None:
    once = normalize(case.pod, FORM)
    assert normalize(once, FORM) == once
    assert list(json_patch(once, normalize(once, FORM))) == []


@pytest.mark.parametrize("case", [case for case in MEANT if dialects.read_pod(case.pod).wants_gpu], ids=by_name)
def test_a_normalized_pod_names_only_native_resources(case: Case) -> None:
    spec = normalize(case.pod, FORM)["spec"]
    shares = {each.name: each.share for each in dialects.read_pod(case.pod).containers}
    found: list[dict[str, Any]] = spec.get("initContainers", []) + spec["containers"]
    for container in found:
        limits: dict[str, Any] = container.get("resources", {}).get("limits", {})
        requests: dict[str, Any] = container.get("resources", {}).get("requests", {})
        ours = {"nvidia.com/vgpu", "nvidia.com/vgpu-memory"}
        assert {key for key in (*limits, *requests) if "gpu" in key or "vcuda" in key} <= ours
        has_share = shares[container["name"]] is not None
        assert ("nvidia.com/vgpu" in limits) == ("nvidia.com/vgpu" in requests) == has_share
        assert ({"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in container.get("env", [])) != has_share


@pytest.mark.parametrize("case", MEANT, ids=by_name)
def test_the_patch_makes_the_normal_form(case: Case) -> None:
    operations = list(json_patch(case.pod, normalize(case.pod, FORM)))
    assert apply(case.pod, operations) == normalize(case.pod, FORM)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("a/~0", max_size=3), inner, max_size=3),
    max_leaves=12,
)


@given(
    old=st.dictionaries(st.text("ab/~", max_size=2), values),
    new=st.dictionaries(st.text("ab/~", max_size=2), values),
)
def test_a_patch_turns_any_document_into_any_other(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert json.dumps(apply(old, list(json_patch(old, new))), sort_keys=True) == json.dumps(new, sort_keys=True)


millis = st.none() | st.integers(0, 1000).map(Milli)


@st.composite
def shares(draw: st.DrawFn) -> ShareRequest:
    milli = draw(millis)
    mib = draw(st.none() | st.integers(1, 90000).map(Mib))
    card = None if mib is not None else draw(st.none() | st.integers(1, 1000).map(Milli))
    if mib is None and card is None:
        milli = milli or Milli(1)
    limits = st.integers(max(1, milli or 0), 1000).map(Milli)
    limit = draw(st.none() | limits if milli is None or milli > 0 else limits)
    return ShareRequest(draw(st.integers(1, 8)), milli, mib, card, limit)


@given(share=shares(), card=st.none() | st.integers(1000, 90000).map(Mib))
def test_every_share_can_be_written_natively(share: ShareRequest, card: Mib | None) -> None:
    from milligpu.dialects.shares import counted_vgpu, format_shares  # noqa: PLC0415

    amount = counted_vgpu(share, unsaid=1)
    pod = {
        "metadata": {"name": "p", "annotations": {"milligpu.dev/shares": format_shares({"main": share})}},
        "spec": {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/vgpu": amount}}}]},
    }
    assert read_one(pod) == share
    assert read_one(normalize(pod, NormalForm(largest_gpu=card))) == share


def read_one(pod: dict[str, Any]) -> ShareRequest | None:
    request: PodRequest = dialects.read_pod(pod)
    return request.containers[0].share


def pod(limits: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    main = {"name": "main", "resources": {"limits": limits or {}}}
    return {"metadata": {"name": "p"}, "spec": {"containers": [main], **spec}}


def amounts(form: NormalForm, limits: dict[str, Any]) -> dict[str, str]:
    return normalize(pod(limits), form)["spec"]["containers"][0]["resources"]["limits"]


def test_memory_alone_counts_as_a_part_of_the_largest_gpu() -> None:
    assert amounts(NormalForm(largest_gpu=Mib(16384)), {"aliyun.com/gpu-mem": 4}) == {
        "nvidia.com/vgpu": "250",
        "nvidia.com/vgpu-memory": "4096",
    }
    assert amounts(NormalForm(), {"aliyun.com/gpu-mem": 4})["nvidia.com/vgpu"] == "1"
    assert amounts(NormalForm(largest_gpu=Mib(1024)), {"aliyun.com/gpu-mem": 4})["nvidia.com/vgpu"] == "1000"


def test_several_gpus_count_together() -> None:
    limits = {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30, "cpu": "1"}
    assert amounts(NormalForm(), limits) == {"cpu": "1", "nvidia.com/vgpu": "600", "nvidia.com/vgpu-memory": "3000"}
    assert amounts(NormalForm(), {"nvidia.com/gpu": "2"}) == {"nvidia.com/vgpu": "2000"}


@pytest.mark.parametrize(
    ("before", "after"),
    [("kai-scheduler", "ours"), ("default-scheduler", "ours"), (None, "ours"), ("volcano", "volcano")],
)
def test_other_systems_schedulers_are_replaced(before: str | None, after: str) -> None:
    found = normalize(pod({"nvidia.com/vgpu": 300}, schedulerName=before), FORM)
    assert found["spec"]["schedulerName"] == after


def test_gpus_are_hidden_from_a_pod_that_requests_none() -> None:
    before = pod(None, schedulerName="kai-scheduler")
    after = normalize(before, FORM)
    assert [operation["path"] for operation in json_patch(before, after)] == ["/spec/containers/0/env"]


def test_what_only_nvidias_plugin_hands_out_stays_visible() -> None:
    before = pod({"nvidia.com/mig-3g.20gb": 1})
    assert normalize(before, FORM) == before


def test_admission_replaces_nvidia_visible_devices_in_every_container() -> None:
    before = pod({"nvidia.com/vgpu": 300})
    greedy = [{"name": "A", "value": "1"}, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    before["spec"]["containers"][0]["env"] = greedy
    before["spec"]["containers"].append({"name": "other", "env": greedy})
    granted, other = normalize(before, FORM)["spec"]["containers"]
    assert granted["env"] == [{"name": "A", "value": "1"}]
    assert other["env"] == [{"name": "A", "value": "1"}, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]


def test_a_pod_that_names_its_node_is_refused() -> None:
    with pytest.raises(BadRequest, match="spec.nodeName: invalid value 'n1'"):
        normalize(pod({"nvidia.com/vgpu": 300}, nodeName="n1"), FORM)
    normalize(pod(None, nodeName="n1"), FORM)


def test_bitfusions_commands_run_in_a_shell_and_its_server_is_a_node() -> None:
    before = pod({"bitfusion.io/gpu-amount": 1})
    before["metadata"]["annotations"] = {
        "auto-management/bitfusion": "all",
        "bitfusion-client/filter": "server.hostname=bf-server",
    }
    before["spec"]["containers"][0]["command"] = ["python train.py --model=x"]
    after = normalize(before, FORM)
    assert after["spec"]["containers"][0]["command"] == ["/bin/bash", "-c", "python train.py --model=x"]
    assert after["spec"]["nodeSelector"] == {"kubernetes.io/hostname": "bf-server"}
    assert normalize(after, FORM) == after


SHELL = ["/bin/bash", "-c"]
CALLS: list[tuple[dict[str, list[str]], dict[str, list[str]]]] = [
    (
        {"args": ["bitfusion", "run", "-n", "1", "-p", "0.5", "--", "python", "a.py", "-n", "7"]},
        {"args": ["python", "a.py", "-n", "7"]},
    ),
    (
        {"command": ["bitfusion", "run"], "args": ["--num_gpus=1", "-l", "10.0.0.1:56001", "nvidia-smi"]},
        {"command": ["nvidia-smi"]},
    ),
    (
        {"command": ["/entry"], "args": ["/usr/bin/bitfusion", "run", "-n1", "-m", "100", "x"]},
        {"command": ["/entry"], "args": ["x"]},
    ),
    (
        {"command": [*SHELL, "source e && /usr/bin/bitfusion run -n 2 -m 4096 -- python 'a b.py' -n 7; done"]},
        {"command": [*SHELL, "source e && python 'a b.py' -n 7; done"]},
    ),
]


@pytest.mark.parametrize(("before", "after"), CALLS)
def test_a_bitfusion_command_runs_without_bitfusion(
    before: dict[str, list[str]], after: dict[str, list[str]]
) -> None:
    asks = pod(None)
    asks["spec"]["containers"][0] |= before
    admitted = normalize(asks, FORM)
    main = admitted["spec"]["containers"][0]
    assert {key: main[key] for key in ("command", "args") if key in main} == after
    assert normalize(admitted, FORM) == admitted
    assert dialects.read_pod(admitted).containers == dialects.read_pod(asks).containers


def test_a_new_pod_loses_the_grant_of_the_pod_that_it_was_copied_from() -> None:
    """As by `kubectl debug --copy-to --keep-annotations`, or restored by a backup tool."""
    notes = {names.GRANT: '{"v":1}', "example.com/other": "x"}
    for limits in ({names.VGPU: "100"}, {}):
        container = {"name": "main", "resources": {"limits": limits}}
        before = {"metadata": {"name": "copy", "annotations": notes}, "spec": {"containers": [container]}}
        found = normalize(before, FORM)["metadata"]["annotations"]
        assert names.GRANT not in found
        assert found["example.com/other"] == "x"
