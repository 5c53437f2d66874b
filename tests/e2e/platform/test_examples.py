"""The examples of every dialect on a real node: each container holds the share that its manifest asks for."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from devcluster.api import read_json
from devcluster.cluster import Cluster
from devcluster.fixtures import new_namespace
from devcluster.images import SEEDS
from devcluster.platform import GpuNode, Platform
from devcluster.wait import until
from milligpu.model import names
from tests.e2e.platform.pods import DEADLINE_S, Inside, Json, apply, get, look, wait_running

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).parents[3] / "examples"
FILES = sorted((EXAMPLES / "dialects").glob("*.yaml"))
PROFILE = "profiles"
SEEDS_DIRECTORY = EXAMPLES / "seeds"
SEED_IMAGES = (
    "docker.io/tensorflow/tensorflow:1.10.0-rc1-gpu-py3",
    "docker.io/nvidia/digits:6.0",
    "docker.io/library/test-image:latest",
    "gcr.io/image-processor:latest",
)
# Milli, limit and MiB of each GPU of each pod; the cards have 40960 MiB.
Share = tuple[int, int, int]
SHARES: dict[str, list[list[Share]]] = {
    "bitfusion": [[(500, 1000, 20480)], [(250, 1000, 10240)]],
    "deepomatic": [[(100, 1000, 4096)]],
    "gpu-manager": [[(300, 500, 7680)]],
    "gpushare": [[(75, 1000, 3072)]] * 2,
    "hami": [[(300, 300, 3000)] * 2, [(500, 1000, 20480)]],
    "kai": [[(500, 1000, 20480)]],
    "kubeshare-v1": [[(500, 1000, 2048)]],
    "kubeshare-v2": [[(250, 500, 1024)]] * 4,
    "native": [[(300, 300, 4096)]] * 2 + [[(400, 400, 16384)] * 2],
    "nvidia": [[]],
}


def test_there_is_an_example_of_every_dialect() -> None:
    assert [file.stem for file in FILES] == sorted([*SHARES, PROFILE])


@pytest.fixture(scope="module")
def applied(platform: Platform) -> Iterator[dict[str, str]]:
    """All examples at once, which fit on the node together; the namespace of each."""
    with ExitStack() as stack:
        found = {dialect: stack.enter_context(new_namespace(platform.cluster)) for dialect in SHARES}
        # Whole GPUs first: shares may end up on all of them.
        for dialect in sorted(found, key=lambda dialect: SHARES[dialect] != [[]]):
            file = EXAMPLES / f"dialects/{dialect}.yaml"
            platform.cluster.kubectl("apply", "-n", found[dialect], "-f", str(file))
            if SHARES[dialect] == [[]]:
                wait_running(platform.cluster, found[dialect], 1)
        yield found


@pytest.mark.parametrize("dialect", SHARES)
def test_a_dialects_example_runs_with_the_share_that_it_asks_for(
    dialect: str, platform: Platform, applied: dict[str, str]
) -> None:
    wanted = SHARES[dialect]
    seen = look_at_all(platform.cluster, applied[dialect], len(wanted))
    assert sorted(shares_of(each) for each in seen) == sorted(wanted)
    for each in seen:
        assert (each.code, each.gpus) == (0, tuple(mib for _, _, mib in shares_of(each)) or (40960, 40960))


def test_a_container_that_its_dialect_gives_nothing_sees_no_gpu(
    platform: Platform, applied: dict[str, str]
) -> None:
    cluster, namespace = platform.cluster, applied["kai"]
    wait_running(cluster, namespace, 1)
    assert look(cluster, namespace, "kai", "main").gpus == (20480,)
    proxy = look(cluster, namespace, "kai", "proxy")
    assert (proxy.gpus, proxy.page, proxy.visible) == ((), None, "void")
    assert "libcuda.so.1" in str(proxy.code)


@pytest.fixture(scope="module")
def half_card(platform: Platform) -> Iterator[GpuNode]:
    """A virtual machine whose GPU is half of a V100, and images under the names that examples/seeds have."""
    cluster = platform.cluster
    half = platform.add(cluster.add_node(), devices=1, model="V100-8Q")
    cluster.add_image(SEEDS)
    cluster.tag_image(SEEDS, *SEED_IMAGES)
    yield half
    # It would be the tightest place for others' small shares.
    cluster.kubectl("cordon", half.node.name)


def test_the_example_of_a_vgpu_profile_runs_on_the_virtual_machine_that_has_it(
    platform: Platform, namespace: str, half_card: GpuNode
) -> None:
    assert [gpu.milli for gpu in half_card.inventory()] == [500]
    platform.cluster.kubectl("apply", "-n", namespace, "-f", str(EXAMPLES / f"dialects/{PROFILE}.yaml"))
    [seen] = look_at_all(platform.cluster, namespace, 1)
    # 300 milli-GPU of half a card are 0.6 of the vGPU's own time.
    assert (seen.code, shares_of(seen), seen.gpus) == (0, [(600, 600, 4915)], (4915,))


def test_the_first_talks_pod_has_its_vgpu_whole(platform: Platform, namespace: str, half_card: GpuNode) -> None:
    cluster = platform.cluster
    cluster.kubectl("apply", "-n", namespace, "-f", str(SEEDS_DIRECTORY / "vgpu-pod.yaml"))
    found = wait_ended(cluster, namespace, "gpu-pod")
    assert found["status"]["phase"] == "Succeeded", cluster.last_state(namespace)
    assert found["spec"]["nodeName"] == half_card.node.name
    assert found["spec"]["nodeSelector"] == {"milligpu.dev/vgpu.v100-8q": "true"}
    assert found["spec"]["containers"][0]["resources"]["limits"] == {names.VGPU: "500"}
    assert cluster.kubectl("logs", "-n", namespace, "gpu-pod").split("\n")[0] == "GPU 0: 8192 MiB"


def test_a_vgpu_type_label_of_somebody_else_stays(platform: Platform, half_card: GpuNode) -> None:
    node = half_card.node.name

    def metadata() -> Json:
        return read_json(platform.cluster.client, f"/api/v1/nodes/{node}")["metadata"]

    until("the agent's labels", lambda: metadata()["labels"].get("milligpu.dev/vgpu.v100-8q") == "true", DEADLINE_S)
    assert metadata()["labels"]["vgpu.type"] == metadata()["annotations"][names.VGPU_TYPE_WRITTEN] == "v100-8q-8GB"
    platform.cluster.kubectl("label", "node", node, "--overwrite", "vgpu.type=v100-8g-8GB")
    until("the agent to see it", lambda: names.VGPU_TYPE_WRITTEN not in metadata()["annotations"], DEADLINE_S)
    assert metadata()["labels"]["vgpu.type"] == "v100-8g-8GB"


def test_the_other_manifests_of_the_source_documents_run(
    platform: Platform, namespace: str, half_card: GpuNode
) -> None:
    cluster = platform.cluster
    with new_namespace(cluster) as other:  # two of the talks chose the same name
        apply(cluster, other, seed("two-gpus"))
        apply(cluster, namespace, seed("one-gpu"), seed("vcuda"), seed("bitfusion"))
        found = {pod["metadata"]["name"]: pod for pod in wait_running(cluster, namespace, 3)}
        inside = {name: look(cluster, namespace, name, asking(pod)) for name, pod in found.items()}
        assert inside["my-gpu-pod"].gpus == (40960,)
        assert (shares_of(inside["vcuda"]), inside["vcuda"].gpus) == ([(500, 500, 7680)], (7680,))
        assert shares_of(inside["bitfusion-benchmark"]) == [(500, 1000, 20480)]
        [two] = wait_running(cluster, other, 1)
        assert look(cluster, other, "gpu-pod", asking(two)).gpus == (40960, 40960)
    # What each runs has allocated half of what it sees.
    for name, mib in (("vcuda", 7680), ("bitfusion-benchmark", 20480)):
        assert cluster.kubectl("logs", "-n", namespace, name) == f"GPU 0: {mib} MiB\n"


@pytest.fixture
def gold(platform: Platform) -> Iterator[None]:
    """The class of examples/gpu-class.yaml."""
    file = str(EXAMPLES / "gpu-class.yaml")
    platform.cluster.kubectl("apply", "-f", file)
    platform.cluster.kubectl("wait", "--for=condition=Ready", "--timeout=30s", "gpuclass/gold")
    yield
    platform.cluster.kubectl("delete", "-f", file)


def test_the_talks_pod_of_a_class_has_a_whole_gpu_of_it(
    platform: Platform, namespace: str, half_card: GpuNode, gold: None
) -> None:
    del half_card, gold
    apply(platform.cluster, namespace, seed("gpu-gold"))
    [pod] = wait_running(platform.cluster, namespace, 1)
    assert pod["metadata"]["annotations"][names.CLASS] == "gold"
    assert look(platform.cluster, namespace, "my-gpu-pod", asking(pod)).gpus == (40960,)


def seed(name: str) -> Json:
    """A manifest as it is printed; the API server would set IfNotPresent but for the tag `latest`."""
    found = yaml.safe_load((SEEDS_DIRECTORY / f"{name}.yaml").read_text())
    for container in found["spec"]["containers"]:
        container.setdefault("imagePullPolicy", "IfNotPresent")
    return found


def wait_ended(cluster: Cluster, namespace: str, name: str) -> Json:
    def ended() -> Json | None:
        pod = get(cluster, namespace, name)
        return pod if pod["status"]["phase"] in {"Succeeded", "Failed"} else None

    return until(f"pod {name} to end", ended, DEADLINE_S, last_state=lambda: cluster.last_state(namespace))


def look_at_all(cluster: Cluster, namespace: str, count: int) -> list[Inside]:
    found = wait_running(cluster, namespace, count)
    return [look(cluster, namespace, pod["metadata"]["name"], asking(pod)) for pod in found]


def asking(pod: Json) -> str:
    """The container with GPUs; the examples have one each."""
    found = [each["name"] for each in pod["spec"]["containers"] if each.get("resources", {}).get("limits")]
    assert len(found) == 1
    return found[0]


def shares_of(inside: Inside) -> list[Share]:
    """A whole GPU has no page."""
    return [(gpu.milli, gpu.limit, gpu.memory_cap >> 20) for gpu in inside.page.gpus] if inside.page else []
