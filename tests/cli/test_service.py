"""`milligpu service`, in a process against an API server of the test's own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from milligpu.cli.main import run
from milligpu.model import names
from milligpu.model.gpu import Gpu
from milligpu.model.grant import GpuShare, Grant
from milligpu.model.request import Share
from milligpu.model.units import Mib, Milli
from milligpu.wire.gpu_service import parse_service
from milligpu.wire.grant import encode_grant
from milligpu.wire.inventory import encode_inventory
from tests.cli.api_server import ApiServer, serve

Capture = pytest.CaptureFixture[str]
CHAT = names.service_path("team-a", "chat")
DEPLOYMENT = "/apis/apps/v1/namespaces/team-a/deployments/chat"
EXAMPLE = Path(__file__).parents[2] / "examples/services/chat.yaml"


def condition(kind: str, reason: str, message: str = "", *, good: bool = True) -> dict[str, str]:
    return {"type": kind, "status": str(good), "reason": reason, "message": message}


def chat_pod(mib: int = 4096) -> dict[str, Any]:
    share = Share(Milli(600), Mib(mib), Milli(600))
    grant = Grant("uid-chat", "n1", {"main": (GpuShare("GPU-1", share),)})
    limits = {names.VGPU: "600", names.VGPU_MEMORY: str(mib)}
    return {
        "metadata": {
            "name": "chat-1",
            "namespace": "team-a",
            "uid": "uid-chat",
            "labels": {"app": "chat", "pod-template-hash": "1"},
            "annotations": {names.GRANT: encode_grant(grant)},
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "main", "resources": {"limits": limits}}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    }


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[ApiServer, list[str]]]:
    [deployment, _, chat] = yaml.safe_load_all(EXAMPLE.read_text())
    chat["metadata"] |= {"namespace": "team-a", "generation": 1}
    chat["status"] = {
        "share": 410,
        "granted": 410,
        "replicas": 1,
        "ready": 1,
        "requests": 12.25,
        "running": 26.0,
        "waiting": 0.0,
        "needed": 410,
        "startSeconds": 95.2,
        "starts": 12,
        "decisions": [{"at": "2026-11-18T07:00:01Z", "message": "share 0.2 to 0.41 GPU for each of 1 pods"}],
        "conditions": [condition("Ready", "Following"), condition("Scaled", "NoRoom", "0.4 wanted", good=False)],
    }
    with serve(tmp_path) as (api, kubeconfig):
        notes = {names.INVENTORY: encode_inventory([Gpu("GPU-1", "A100", Mib(10240))])}
        status = {"conditions": [{"type": "Ready", "status": "True"}]}
        api.put_list("/api/v1/nodes", {"metadata": {"name": "n1", "annotations": notes}, "status": status})
        api.put_list("/api/v1/pods", chat_pod())
        api.put_list(names.CLASSES_PATH)
        api.put_list(names.SERVICES_PATH, chat)
        api.put_list(CHAT.rpartition("/")[0], chat)
        api.objects[CHAT] = chat
        api.objects[DEPLOYMENT] = deployment
        api.objects[f"{DEPLOYMENT}/scale"] = {"spec": {"replicas": 1}, "status": {"selector": "app=chat"}}
        yield api, ["--kubeconfig", str(kubeconfig)]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["list"], "team-a/chat  0.41 of 0.6  1/1 of 4    0.41   12.2  NoRoom"),
        (["list", "-n", "team-a"], "team-a/chat  0.41 of 0.6  1/1 of 4    0.41   12.2  NoRoom"),
        (["show", "chat"], "start takes           95 s (12 starts)"),
        (["show", "chat", "--namespace", "team-a"], "Scaled     False   NoRoom     0.4 wanted"),
        (["explain", "chat"], "2026-11-18T07:00:01  share 0.2 to 0.41 GPU for each of 1 pods"),
        (["explain", "chat"], "Scaled: NoRoom: 0.4 wanted"),
        (["plan", "chat"], "ready in about 95 s (12 starts)"),
    ],
)
def test_services_are_shown_in_80_columns(
    *, cluster: tuple[ApiServer, list[str]], words: list[str], shown: str, capsys: Capture
) -> None:
    assert run(["service", *words, *cluster[1]]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert shown in lines
    assert words[0] == "plan" or max(map(len, lines)) <= 80


def test_a_plan_says_who_lends_to_the_new_pod(cluster: tuple[ApiServer, list[str]], capsys: Capture) -> None:
    assert run(["service", "plan", "chat", *cluster[1]]) == 0
    assert "pod chat-1 lends its 0.6 GPU until the new pod is bound" in capsys.readouterr().out


def test_a_plan_of_an_update_whose_memory_does_not_fit_ends_with_75(
    cluster: tuple[ApiServer, list[str]], capsys: Capture
) -> None:
    cluster[0].put_list("/api/v1/pods", chat_pod(mib=6144))
    assert run(["service", "plan", "chat", *cluster[1]]) == 75
    said = capsys.readouterr().err
    assert (
        "MemoryHoldsOneVersion: n1/GPU-1 has 4Gi of 10Gi free next to the present pod, and 6Gi are needed" in said
    )


@pytest.mark.parametrize(("word", "paused"), [("pause", True), ("resume", False)])
def test_a_person_pauses_and_resumes_a_service(
    *, cluster: tuple[ApiServer, list[str]], word: str, paused: bool
) -> None:
    assert run(["service", word, "chat", *cluster[1]]) == 0
    assert cluster[0].patches[CHAT] == {"spec": {"paused": paused}}


def test_init_prints_a_service_for_what_runs(cluster: tuple[ApiServer, list[str]], capsys: Capture) -> None:
    assert run(["service", "init", "deployment/chat", "--max-replicas", "4", *cluster[1]]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    found = parse_service(printed)
    assert (found.namespace, found.name, str(found.target)) == ("team-a", "chat", "deployment/chat")
    assert printed["spec"]["load"] == {"preset": "vllm"}  # by the image's name
    assert (found.share.max, found.replicas and (found.replicas.min, found.replicas.max)) == (400, (1, 4))

    assert run(["service", "init", "deployment/chat", "--preset", "triton", *cluster[1]]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["spec"]["load"] == {"preset": "triton"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "x"], "service: invalid value 'x': must be the name of a GpuService in team-a"),
        (["init", "job/x"], "target: invalid value 'job/x': must be KIND/NAME, where KIND is deployment"),
    ],
)
def test_bad_names_are_refused(
    *, cluster: tuple[ApiServer, list[str]], words: list[str], message: str, capsys: Capture
) -> None:
    assert run(["service", *words, *cluster[1]]) == 2
    assert message in capsys.readouterr().err
