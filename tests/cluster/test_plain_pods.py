"""Pods without GPUs: recognized by a short look, counted exactly, and evicted where another pod needs their CPU."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from milligpu import dialects
from milligpu.cluster.plain_reader import PlainReader
from milligpu.dialects.choose import KNOWN
from milligpu.dialects.pod import pod_fields
from milligpu.dialects.templates import PATHS, pod_of_template
from milligpu.model import names
from milligpu.model.errors import BadRequest
from milligpu.wire.kubernetes import KubePod, decode_pod
from tests.cluster.objects import node, pod
from tests.cluster.test_preemption import choose_victims
from tests.cluster.test_state import World

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").rglob("*.yaml"))


def encoded(found: dict[str, Any]) -> KubePod:
    return decode_pod(json.dumps(found).encode())


def plain(name: str, cpu: str = "1", memory: str = "1Gi", at: str = "n0", **more: Any) -> dict[str, Any]:
    resources = {"requests": {"cpu": cpu, "memory": memory}}
    return pod(name, None, containers=[{"name": "main", "resources": resources}], nodeName=at, **more)


def pods_of_examples() -> list[dict[str, Any]]:
    objects: list[dict[str, Any]] = [
        each for file in EXAMPLES for each in yaml.safe_load_all(file.read_text()) if each
    ]
    objects = [{**each, "metadata": {**each["metadata"], "namespace": "default"}} for each in objects]
    return [pod_of_template(each["kind"], each) for each in objects if each["kind"] in PATHS]


def wants_gpu(found: dict[str, Any]) -> bool:
    try:
        return dialects.read_pod(found).wants_gpu
    except BadRequest:
        return True


def test_no_pod_of_an_example_that_requests_a_gpu_is_taken_for_one_without() -> None:
    reader, examples = PlainReader(), pods_of_examples()
    requests = [each for each in examples if wants_gpu(each)]
    assert dialects_of(requests) == set(KNOWN.by_name)
    assert [each["metadata"] for each in requests if reader.read(encoded(each)) is not None] == []


def dialects_of(found: list[dict[str, Any]]) -> set[str]:
    fields = map(pod_fields, found)
    return {dialect.name for each in fields for dialect in KNOWN.dialects if dialect.first_field(each)}


@pytest.mark.parametrize(
    "more",
    [
        {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu-mem": "1"}}}]},
        {"containers": [{"name": "main", "resources": {"requests": {"gpu-gold": "1"}}}]},
        {"initContainers": [{"name": "first", "resources": {"limits": {names.VGPU: "100"}}}]},
        {"ephemeralContainers": [{"name": "debug", "resources": {"limits": {names.VGPU: "100"}}}]},
        {"resources": {"limits": {names.VGPU: "100"}}},
        {"containers": [{"name": "main", "command": ["bitfusion", "run", "-n", "1", "python"]}]},
        {"notes": {names.LIMIT: "500"}},
        {"notes": {names.GRANT: "not even JSON"}},
        {"notes": {"gpu-fraction": "0.5"}},
    ],
)
def test_what_may_be_a_request_is_read_as_a_whole(more: dict[str, Any]) -> None:
    assert PlainReader().read(encoded(pod("a", None, nodeName="n0", **more))) is None


def test_ordinary_labels_and_annotations_are_no_request() -> None:
    found = pod("a", None, notes={"prometheus.io/scrape": "true"}, nodeName="n0")
    found["metadata"]["labels"] = {"app": "shop", "milligpu": "no"}
    assert PlainReader().read(encoded(found)) is not None


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"overhead": {"cpu": "250m", "memory": "100Mi"}},
        {"resources": {"requests": {"cpu": "3"}}},
        {"initContainers": [{"name": "first", "resources": {"requests": {"cpu": "5", "memory": "1k"}}}]},
        {
            "initContainers": [
                {"name": "side", "restartPolicy": "Always", "resources": {"limits": {"cpu": "0.5"}}},
                {"name": "first", "resources": {"requests": {"memory": "3Gi"}}},
            ]
        },
    ],
)
def test_their_cpu_and_memory_are_counted_as_if_they_were_read_as_a_whole(more: dict[str, Any]) -> None:
    whole, short = World(), World()
    found = encoded(plain("a", "1500m", "1100Mi", **more))
    whole.state.put_pod(whole.pods.read(found))
    read = PlainReader().read(found)
    assert read is not None
    short.state.put_plain(read)
    assert free(short) == free(whole) != free(World())
    assert short.state.entry("uid-a") is None


def free(world: World, name: str = "n0") -> tuple[int, int]:
    snap = world.state.placer.snapshot
    row = snap.rows_of[name][0]
    return int(snap.cpu[row]), int(snap.memory[row])


def put(world: World, found: dict[str, Any]) -> None:
    read = PlainReader().read(encoded(found))
    assert read is not None
    world.state.put_plain(read)


def test_what_a_pod_used_is_free_when_it_has_ended_was_deleted_or_is_no_longer_listed() -> None:
    world, before = World(), free(World())
    for name in ("ended", "deleted", "missing"):
        put(world, plain(name))
    put(world, plain("ended"))  # a second event changes nothing
    version = world.state.pods.capacity_version
    put(world, plain("ended", phase="Succeeded"))
    world.state.drop_pod("uid-deleted")
    assert world.state.plain.missing_from({"uid-deleted"}) == ["uid-missing"]
    world.state.drop_pod("uid-missing")
    assert free(world) == before
    assert world.state.pods.capacity_version == version + 3
    assert len(world.state.plain) == 0


def test_a_node_that_comes_later_or_changes_counts_the_pods_that_are_on_it() -> None:
    world = World()
    put(world, plain("a", at="late"))
    put(world, plain("waits", at=""))
    world.put_node(node("late"))
    world.put_node(node("late", cards=4))
    assert free(world, "late") == (63_000, 511 * 1024)


def test_a_pod_without_a_gpu_is_evicted_if_another_needs_its_cpu_and_not_otherwise() -> None:
    world = World()
    put(world, plain("small", cpu="1"))
    put(world, plain("large", cpu="63", priority=5))
    more: dict[str, Any] = {
        "containers": [{"name": "main", "resources": {"limits": {names.VGPU: "500"}, "requests": {"cpu": "2"}}}]
    }
    spec = world.pods.read(encoded(pod("high", None, priority=10, **more))).spec
    assert choose_victims(world.state, spec, "n0") == ["uid-large"]
    entry = world.state.entry("uid-large")
    assert entry is not None
    assert (str(entry.spec.pod), entry.spec.priority, entry.node) == ("default/large", 5, "n0")
    assert free(world) == (0, 510 * 1024)

    without = World()
    put(without, plain("large", cpu="63"))
    spec = without.pods.read(encoded(pod("high", 500, priority=10))).spec
    assert choose_victims(without.state, spec, "n0") == []
    assert without.state.entry("uid-large") is None
