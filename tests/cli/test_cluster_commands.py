"""Commands about pods and GPUs of a cluster, in a process against an API server of the test's own."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from milligpu.cli.main import run
from milligpu.model import names
from milligpu.model.gpu import Gpu, GpuState
from milligpu.model.grant import GpuShare, Grant
from milligpu.model.policy import SharePolicy
from milligpu.model.request import Share
from milligpu.model.units import Mib, Milli
from milligpu.wire.grant import encode_grant
from milligpu.wire.inventory import encode_inventory
from tests.cli.api_server import ApiServer, serve
from tests.cluster.objects import pod

Capture = pytest.CaptureFixture[str]
UUIDS = ("GPU-11111111-0000-0000-0000-000000000000", "GPU-12222222-0000-0000-0000-000000000000")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[ApiServer, list[str]]]:
    with serve(tmp_path) as (api, kubeconfig):
        inventory = encode_inventory([Gpu(uuid, "A100", Mib(40960)) for uuid in UUIDS])
        notes = {names.INVENTORY: inventory, names.DRIVER: '{"v":1,"driver":"535.54.03","cuda":"12.2"}'}
        api.put_list("/api/v1/nodes", {"metadata": {"name": "n1", "annotations": notes}})
        api.put_list("/api/v1/pods")
        yield api, ["--kubeconfig", str(kubeconfig)]


@pytest.mark.parametrize("name", ["nobody", "pod/nobody"])
@pytest.mark.parametrize(
    ("options", "namespace"), [([], "team-a"), (["-n", "team-b"], "team-b")], ids=["context", "-n"]
)
@pytest.mark.parametrize("words", [["explain"], ["resize", "-p", "0.5"], ["top", "--once"]], ids=lambda it: it[0])
def test_a_pod_that_does_not_exist_is_bad_input(
    *,
    cluster: tuple[ApiServer, list[str]],
    words: list[str],
    options: list[str],
    namespace: str,
    name: str,
    capsys: Capture,
) -> None:
    assert run([*words, name, *options, *cluster[1]]) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert error.startswith("error: pod")
    assert f"{namespace}/nobody" in error
    assert hint.startswith("hint: list ")


def test_a_gpu_is_cordoned_by_the_beginning_of_its_uuid(
    cluster: tuple[ApiServer, list[str]], capsys: Capture
) -> None:
    api, kubeconfig = cluster
    assert run(["gpu", "cordon", "12", "--reason", "noisy fan", *kubeconfig]) == 0
    assert capsys.readouterr().out == f"{UUIDS[1]} on n1: cordoned\n"
    written = api.patches["/api/v1/nodes/n1"]["metadata"]["annotations"]
    assert json.loads(written[names.GPU_SETTINGS])["cordoned"] == {UUIDS[1]: "noisy fan"}
    assert written[names.OLD_GPU_SETTINGS] is None, "the old spelling is removed"


@pytest.mark.parametrize(("target", "uuids"), [("12", UUIDS[1:2]), ("n1", UUIDS)])
def test_a_policy_is_set_for_one_gpu_or_for_all_of_a_node(
    *, cluster: tuple[ApiServer, list[str]], target: str, uuids: list[str], capsys: Capture
) -> None:
    api, kubeconfig = cluster
    assert run(["gpu", "policy", target, "fixed", *kubeconfig]) == 0
    said = capsys.readouterr().out
    written = api.patches["/api/v1/nodes/n1"]["metadata"]["annotations"][names.GPU_SETTINGS]
    policies = json.loads(written)["policies"]
    assert set(uuids) <= policies.keys()
    assert set(policies.values()) == {"fixed"}
    assert said == "".join(f"{uuid} on n1: fixed\n" for uuid in policies)


@pytest.mark.parametrize(
    ("words", "exists"),
    [
        (["GPU-9", "fixed"], ["gpu: invalid value 'GPU-9'", UUIDS[0], "or a node with GPUs: n1"]),
        (["n7", "fixed"], ["gpu: invalid value 'n7'", "n1"]),
        (["n1", "fair"], ["POLICY: invalid value 'fair': must be fixed or equal or best-effort or default"]),
    ],
)
def test_a_policy_for_what_does_not_exist_is_refused_with_what_does(
    *, cluster: tuple[ApiServer, list[str]], words: list[str], exists: list[str], capsys: Capture
) -> None:
    api, kubeconfig = cluster
    assert run(["gpu", "policy", *words, *kubeconfig]) == 2
    error = capsys.readouterr().err
    assert [word for word in exists if word not in error] == []
    assert not api.patches


@pytest.mark.parametrize(
    ("present", "named"), [("best-effort", "equal"), ("fixed", "equal"), ("equal", "best-effort")]
)
def test_a_pod_that_waits_for_a_policy_is_explained_with_the_gpus_policy_and_the_command_that_sets_another(
    *,
    cluster: tuple[ApiServer, list[str]],
    present: str,
    named: str,
    capsys: Capture,
) -> None:
    api, kubeconfig = cluster
    gpus = [Gpu(uuid, "A100", Mib(40960), policy=SharePolicy(present)) for uuid in UUIDS]
    node = {"metadata": {"name": "n1", "annotations": {names.INVENTORY: encode_inventory(gpus)}}}
    api.put_list("/api/v1/nodes", node)
    waiting = {
        "metadata": {"name": "a", "namespace": "team-a", "uid": "uid-a", "annotations": {names.POLICY: named}},
        "spec": {"containers": [{"name": "main", "resources": {"limits": {names.VGPU: "100"}}}]},
        "status": {"phase": "Pending"},
    }
    api.objects["/api/v1/namespaces/team-a/pods/a"] = waiting
    api.put_list("/api/v1/pods", waiting)
    assert run(["explain", "a", *kubeconfig]) == 0
    assert capsys.readouterr().out == (
        f"0/1 nodes: 1 PolicyMismatch (n1/GPU-11111111: its share policy is {present}); "
        f"try `milligpu gpu policy {UUIDS[0]} {named}` (an admin)\n"
    )


@pytest.mark.parametrize(
    ("state", "message", "said"),
    [
        (GpuState.OK, "", "uncordoned"),
        (
            GpuState.UNHEALTHY,
            "lost: the GPU no longer answers",
            "uncordoned, but it stays unhealthy: lost: the GPU no longer answers; "
            "it gets new shares when this is over",
        ),
        (GpuState.CORDONED, "noisy fan", "uncordoned; the node's agent has not confirmed it yet"),
    ],
)
def test_uncordon_says_what_became_of_the_gpu(
    *, cluster: tuple[ApiServer, list[str]], state: GpuState, message: str, said: str, capsys: Capture
) -> None:
    api, kubeconfig = cluster
    gpus = [Gpu(UUIDS[1], "A100", Mib(40960), state=state, message=message)]
    node = {"metadata": {"name": "n1", "annotations": {names.INVENTORY: encode_inventory(gpus)}}}
    api.put_list("/api/v1/nodes", node)
    api.objects["/api/v1/nodes/n1"] = node
    assert run(["gpu", "uncordon", "12", *kubeconfig]) == 0
    assert capsys.readouterr().out == f"{UUIDS[1]} on n1: {said}\n"


def resizable(api: ApiServer) -> None:
    """A pod of half a GPU in team-a."""
    grant = Grant("u1", "n1", {"main": (GpuShare(UUIDS[0], Share(Milli(500), Mib(8192), Milli(500))),)})
    metadata = {"name": "a", "namespace": "team-a", "uid": "u1", "annotations": {names.GRANT: encode_grant(grant)}}
    limits = {names.VGPU: "500", names.VGPU_MEMORY: "8192"}
    spec = {"nodeName": "n1", "containers": [{"name": "main", "resources": {"limits": limits}}]}
    pod = {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}}
    api.put_list("/api/v1/pods", pod)
    api.objects["/api/v1/namespaces/team-a/pods/a"] = pod


def test_a_resize_beyond_the_gpu_is_refused_before_anything_is_written(
    cluster: tuple[ApiServer, list[str]], capsys: Capture
) -> None:
    api, kubeconfig = cluster
    resizable(api)
    assert run(["resize", "pod/a", "-m", "80Gi", *kubeconfig]) == 2
    error = capsys.readouterr().err
    most = "at most 40Gi, which is all that n1/GPU-11111111 has for pods"
    assert error == f"error: -m: invalid value '80Gi': must be {most}\n"
    assert not api.patches


def test_of_several_containers_one_is_resized(cluster: tuple[ApiServer, list[str]], capsys: Capture) -> None:
    api, kubeconfig = cluster
    shares = {name: (GpuShare(UUIDS[0], Share(Milli(200), Mib(4096), Milli(200))),) for name in ("one", "two")}
    notes = {names.GRANT: encode_grant(Grant("u1", "n1", shares))}
    limits = {"limits": {names.VGPU: "200", names.VGPU_MEMORY: "4096"}}
    spec = {"nodeName": "n1", "containers": [{"name": name, "resources": limits} for name in shares]}
    meta = {"name": "a", "namespace": "team-a", "uid": "u1", "annotations": notes}
    pod = {"metadata": meta, "spec": spec, "status": {"phase": "Running"}}
    api.put_list("/api/v1/pods", pod)
    api.objects["/api/v1/namespaces/team-a/pods/a"] = pod
    run(["resize", "pod/a", "-c", "two", "-p", "0.3", *kubeconfig])
    written = api.patches["/api/v1/namespaces/team-a/pods/a"]["metadata"]["annotations"][names.RESIZE]
    assert json.loads(written) == {"two": {"milli": 300}}
    capsys.readouterr()


def test_an_ambiguous_gpu_is_refused_with_the_candidates(
    cluster: tuple[ApiServer, list[str]], capsys: Capture
) -> None:
    api, kubeconfig = cluster
    assert run(["gpu", "uncordon", "GPU-1", *kubeconfig]) == 2
    error = capsys.readouterr().err
    assert all(uuid in error for uuid in UUIDS)
    assert not api.patches


def test_classes_are_listed_with_what_is_free_in_each(
    cluster: tuple[ApiServer, list[str]], capsys: Capture
) -> None:
    api, kubeconfig = cluster
    api.put_list(
        names.CLASSES_PATH,
        {"metadata": {"name": "gold"}, "spec": {"requirements": "model=A100", "fallback": "silver"}},
        {"metadata": {"name": "one"}, "spec": {"requirements": f"uuid={UUIDS[0]}"}},
        {"metadata": {"name": "typo"}, "spec": {"requirements": "eccc"}},
    )
    share = Share(Milli(300), Mib(12288), Milli(300))
    grant = Grant("u", "n1", {"main": (GpuShare(UUIDS[0], share),)}, gpu_class="one")
    main = {"name": "main", "resources": {"limits": {names.VGPU: "300"}}}
    notes = {names.GRANT: encode_grant(grant), names.CLASS: "one"}
    meta = {"name": "p", "namespace": "default", "uid": "u", "annotations": notes}
    api.put_list("/api/v1/pods", {"metadata": meta, "spec": {"nodeName": "n1", "containers": [main]}})

    assert run(["class", "list", "-o", "json", *kubeconfig]) == 0
    gold, one, typo = json.loads(capsys.readouterr().out)
    assert (gold["gpus"], gold["whole"], gold["milli"], gold["total"]) == (2, 1, 1000, 1700)
    assert (gold["fallback"], gold["ready"], gold["reason"]) == ("silver", False, "FallbackGone")
    assert (one["gpus"], one["whole"], one["milli"], one["mib"], one["ready"]) == (1, 0, 700, 28672, True)
    assert (typo["gpus"], typo["requirements"], typo["reason"]) == (0, "eccc", "InvalidRequirements")
    assert run(["class", "list", *kubeconfig]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["one", f"uuid={UUIDS[0]}", "-", "yes", "1", "0", "0.7", "28Gi", "0.7"]
    assert run(["class", "list", "-o", "wide", *kubeconfig]) == 0
    wide = capsys.readouterr().out
    assert "class silver does not exist" in wide
    assert "535.54.03  12.2" in wide
    assert (one["driver"], one["cuda"]) == ("535.54.03", "12.2")
    assert run(["class", "list", "-o", "name", *kubeconfig]) == 0
    assert capsys.readouterr().out == "gold\none\ntypo\n"


def test_a_cluster_without_classes_has_an_empty_list(cluster: tuple[ApiServer, list[str]], capsys: Capture) -> None:
    assert run(["class", "list", "-o", "json", *cluster[1]]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_queues_are_listed_with_their_lines_and_users_and_a_pod_says_where_it_stands(
    cluster: tuple[ApiServer, list[str]], capsys: Capture
) -> None:
    api, kubeconfig = cluster
    users = [{"name": "ann", "milli": 700.0, "at": 1.0}]
    spec = {"ceiling": {"milli": 500}, "order": "fifo"}
    api.put_list(
        names.QUEUES_PATH,
        {"metadata": {"name": "a", "uid": "qa"}, "spec": spec, "status": {"users": users}},
        {"metadata": {"name": "b", "uid": "qb"}, "spec": {"parent": "gone"}},
    )
    main = {"name": "main", "resources": {"limits": {names.VGPU: "500"}}}
    pods: list[dict[str, object]] = []
    for name in ("one", "two", "three"):
        meta = {"name": name, "namespace": "default", "uid": name, "labels": {names.QUEUE: "a"}}
        notes = {"annotations": {names.USER: "bob"}, "creationTimestamp": "2026-01-01T00:00:00Z"}
        gates = {"schedulingGates": [{"name": names.QUEUE}]} if name != "one" else {}
        pods.append({"metadata": {**meta, **notes}, "spec": {"containers": [main], **gates}})
        api.objects[f"/api/v1/namespaces/default/pods/{name}"] = pods[-1]
    api.put_list("/api/v1/pods", *pods)

    assert run(["queue", "list", *kubeconfig]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:9] == ["a", "-", "fifo", "1", "0", "0.5", "0.5", "20Gi", "2"]
    assert "the name of a GpuQueue" in lines[2]
    assert run(["queue", "show", "a", "-o", "json", *kubeconfig]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["pod"], first["position"], first["user"], first["reason"]) == ("two", 1, "bob", "QueueCeiling")
    assert second["message"].startswith("2nd of 2 in a; waits until pods of a end")
    assert run(["queue", "show", "a", *kubeconfig]) == 0
    assert "default/three" in capsys.readouterr().out
    assert run(["queue", "show", "nope", *kubeconfig]) == 2
    assert "one of a, b" in capsys.readouterr().err
    assert run(["queue", "top", *kubeconfig]) == 0
    assert ["bob", "a", "0.5", "0", "2"] in [line.split() for line in capsys.readouterr().out.splitlines()]
    assert run(["explain", "two", "-n", "default", *kubeconfig]) == 0
    assert capsys.readouterr().out.startswith("1st of 2 in a; waits until pods of a end")


def held(name: str, milli: int, mib: int, gpu: str, **notes: str) -> dict[str, Any]:
    """A running pod with this share of a GPU of the node."""
    share = Share(Milli(milli), Mib(mib), Milli(milli))
    found = pod(name, milli, notes=notes, grant=Grant(f"uid-{name}", "n1", {"main": (GpuShare(gpu, share),)}))
    found["spec"]["containers"][0]["resources"]["limits"][names.VGPU_MEMORY] = str(mib)
    return found


def test_explain_says_of_pods_that_do_not_exist_yet_where_they_start_and_who_yields(
    cluster: tuple[ApiServer, list[str]], tmp_path: Path, capsys: Capture
) -> None:
    api, kubeconfig = cluster
    running = [held("elastic", 700, 1024, UUIDS[0], **{names.FLOOR: "200"}), held("rigid", 700, 39000, UUIDS[1])]
    api.put_list("/api/v1/pods", *running)
    small, high = pod("small", 300), pod("high", 500, priority=10)
    for each in (small, high):
        each["spec"]["containers"][0]["resources"]["limits"][names.VGPU_MEMORY] = "1024"
        del each["metadata"]["namespace"], each["metadata"]["uid"]
    template = {"metadata": {}, "spec": {"containers": pod("x", 100)["spec"]["containers"]}}
    job = {"kind": "Job", "metadata": {"name": "train"}, "spec": {"parallelism": 2, "template": template}}
    file = tmp_path / "pods.yaml"
    documents = ({"kind": "Pod"} | small, {"kind": "Pod"} | high, job)
    file.write_text("---\n".join(json.dumps(each) + "\n" for each in documents))

    assert run(["explain", "-f", str(file), *kubeconfig]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("team-a/small: starts at once on n1; main: GPU-11")
    assert lines[1].startswith("team-a/high: 0/1 nodes: 1 InsufficientGPUCore")
    assert "; makes room on n1: shrinks pod default/elastic from 0.7 to 0.2 GPU; start unknown" in lines[1]
    assert [line.split(":")[0] for line in lines[2:]] == ["team-a/train-3", "team-a/train-4"]
    assert [each["spec"].get("restartPolicy") for each in api.dry_runs] == [None, None, "Never", "Never"]
    assert run(["explain", "-f", str(file), "-o", "json", *kubeconfig]) == 0
    assert [each["pod"] for each in json.loads(capsys.readouterr().out)][:2] == ["small", "high"]
    assert run(["explain", *kubeconfig]) == 2
    assert "either the name of a pod or -f FILE" in capsys.readouterr().err


def test_explain_says_when_only_evicting_helps_because_memory_is_short(
    cluster: tuple[ApiServer, list[str]], capsys: Capture
) -> None:
    api, kubeconfig = cluster
    elastic = held("elastic", 900, 30000, UUIDS[0], **{names.FLOOR: "200"})
    high = pod("high", 500, priority=10)
    high["spec"]["containers"][0]["resources"]["limits"][names.VGPU_MEMORY] = "20000"
    other = held("other", 900, 40000, UUIDS[1])
    other["spec"]["priority"] = 11
    api.put_list("/api/v1/pods", elastic, other, high)
    api.objects["/api/v1/namespaces/default/pods/high"] = high
    assert run(["explain", "high", "-n", "default", *kubeconfig]) == 0
    said = capsys.readouterr().out
    assert "makes room on n1: evicts pod default/elastic (only evicting helps, because memory is short" in said
