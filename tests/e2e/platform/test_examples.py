"""The examples of every dialect on a real node: each container holds the share that its manifest asks for."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from devcluster.cluster import Cluster
from devcluster.platform import Platform
from devcluster.wait import until
from tests.e2e.platform.pods import Inside, Json, apply, get, is_ready, look, pods, wait_running

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).parents[3] / "examples"
FILES = sorted((EXAMPLES / "dialects").glob("*.yaml"))
PROGRAM = str(Path(sys.executable).with_name("milligpu"))
PROFILE = "profiles"
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


@pytest.mark.parametrize("dialect", SHARES)
def test_a_dialects_example_runs_with_the_share_that_it_asks_for(
    dialect: str, platform: Platform, namespace: str
) -> None:
    file, wanted = EXAMPLES / f"dialects/{dialect}.yaml", SHARES[dialect]
    platform.cluster.kubectl("apply", "-n", namespace, "-f", str(file))
    seen = look_at_all(platform.cluster, namespace, len(wanted))
    assert sorted(shares_of(each) for each in seen) == sorted(wanted)
    for each in seen:
        assert (each.code, each.gpus) == (0, tuple(mib for _, _, mib in shares_of(each)) or (40960, 40960))
    leave(platform.cluster, namespace, file)


def test_the_example_of_a_vgpu_profile_runs_on_the_virtual_machine_that_has_it(
    platform: Platform, namespace: str
) -> None:
    cluster = platform.cluster
    half = platform.add(cluster.add_node(), devices=1, model="V100-8Q")
    try:
        assert [gpu.milli for gpu in half.inventory()] == [500]
        cluster.kubectl("apply", "-n", namespace, "-f", str(EXAMPLES / f"dialects/{PROFILE}.yaml"))
        [seen] = look_at_all(cluster, namespace, 1)
        assert (seen.code, shares_of(seen), seen.gpus) == (0, [(300, 300, 4915)], (4915,))
    finally:
        # It would be the tightest place for others' small shares.
        cluster.kubectl("cordon", half.node.name)


def leave(cluster: Cluster, namespace: str, file: Path) -> None:
    """Make room at once: a shell's `sleep` would take its half minute to end."""
    cluster.kubectl("delete", "-n", namespace, "-f", str(file), "--wait=false")
    cluster.kubectl("delete", "pods", "--all", "-n", namespace, "--grace-period=1", "--wait=false")


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


def test_a_container_that_its_dialect_gives_nothing_sees_no_gpu(platform: Platform, namespace: str) -> None:
    cluster = platform.cluster
    cluster.kubectl("apply", "-n", namespace, "-f", str(EXAMPLES / "dialects/kai.yaml"))
    wait_running(cluster, namespace, 1)
    assert look(cluster, namespace, "kai", "main").gpus == (20480,)
    proxy = look(cluster, namespace, "kai", "proxy")
    assert (proxy.gpus, proxy.page, proxy.visible) == ((), None, "void")
    assert "libcuda.so.1" in str(proxy.code)
    leave(cluster, namespace, EXAMPLES / "dialects/kai.yaml")


def test_halves_of_a_gpu_run_side_by_side_and_who_finds_none_is_told_why(
    platform: Platform, namespace: str
) -> None:
    cluster = platform.cluster
    job = yaml.safe_load((EXAMPLES / "half-gpu.yaml").read_text())
    main = job["spec"]["template"]["spec"]["containers"][0]
    main["args"] = [main["args"][0] + "\nimport time\ntime.sleep(600)"]
    job["spec"] |= {"parallelism": 5, "completions": 5}
    job["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": platform.nodes[0].node.name}
    apply(cluster, namespace, job)

    def four() -> list[Json] | None:
        found = pods(cluster, namespace)
        return found if sum(map(is_ready, found)) == 4 and len(found) == 5 else None

    found = until("four of five", four, 90, last_state=lambda: cluster.last_state(namespace))
    waiting = next(each["metadata"]["name"] for each in found if not is_ready(each))
    why = explain(cluster, namespace, waiting)
    assert "InsufficientGPUCore" in why
    assert "0 of 500" in why
    running = next(each["metadata"]["name"] for each in found if is_ready(each))
    assert "0.5 with 20Gi" in explain(cluster, namespace, running)
    assert look(cluster, namespace, running, "train").gpus == (20480,)
    cluster.kubectl("delete", "pod", "-n", namespace, running, "--grace-period=0", "--force")
    until("its place to be taken", lambda: is_ready(get(cluster, namespace, waiting)), 90)
    cluster.kubectl("delete", "job", "--all", "-n", namespace, "--wait=false")
    cluster.kubectl("delete", "pods", "--all", "-n", namespace, "--grace-period=1", "--wait=false")


def explain(cluster: Cluster, namespace: str, pod: str) -> str:
    command = [PROGRAM, "explain", pod, "-n", namespace, "--kubeconfig", str(cluster.kubeconfig)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
