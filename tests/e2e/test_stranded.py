"""A pod that its kubelet will never start gives its share back, and its owner is told."""

import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from lightkube.resources.core_v1 import Pod

from devcluster.cluster import Cluster
from devcluster.fixtures import new_namespace
from devcluster.platform import GpuNode, Platform
from devcluster.pods import phase, pod
from devcluster.wait import until
from milligpu.model import names
from testing.chaos.observe import is_stranded
from tests.e2e.scheduling import told

pytestmark = pytest.mark.e2e

# In runc's place on the node: it never returns for the pod's container, between CreateContainer and StartContainer.
RUNC = """#!/bin/sh
last=
for word in "$@"; do [ "$last" = --bundle ] && bundle=$word; last=$word; done
if [ -n "$bundle" ] && grep -q '"io.kubernetes.cri.container-type":"container"' "$bundle/config.json" &&
    grep -q '"io.kubernetes.cri.sandbox-name":"stranded"' "$bundle/config.json"; then
  touch {folder}/reached
  sleep 10000
fi
exec {folder}/runc.real "$@"
"""


def test_a_pod_that_the_kubelet_never_starts_fails_and_its_share_is_free(
    hurt_cluster: Cluster, hurt_platform: Platform, tmp_path: Path
) -> None:
    (gpu_node,) = hurt_platform.nodes
    client, node = hurt_cluster.client, gpu_node.node
    _let_runc_hang(gpu_node, tmp_path)
    with new_namespace(hurt_cluster) as namespace:
        client.create(pod("stranded", resources={names.VGPU: "2000"}), namespace=namespace)
        until("the container to be created", (tmp_path / "reached").exists, 60)
        node.containerd.kill()
        _kill(gpu_node, tmp_path)
        node.run_inside("umount", _runc())
        node.containerd.start()
        found: Any = client.get(Pod, "stranded", namespace=namespace)
        until("the runtime to know it", lambda: is_stranded(gpu_node, found.metadata.uid), 60)
        assert phase(client.get(Pod, "stranded", namespace=namespace)) == "Pending"

        client.create(pod("next", resources={names.VGPU: "2000"}), namespace=namespace)
        until("it to fail", lambda: phase(client.get(Pod, "stranded", namespace=namespace)) == "Failed", 90)
        event = until("the event", lambda: told(hurt_cluster, namespace, "stranded", "PodStranded") or None, 30)
        assert "after the container was created and before it was started" in event
        until("its share to be used", lambda: phase(client.get(Pod, "next", namespace=namespace)) == "Running", 60)
    until("all to be gone", lambda: not list((node.folder / "run/milligpu/containers").iterdir()), 60)


def _runc() -> str:
    found = shutil.which("runc")
    assert found is not None
    return found


def _let_runc_hang(gpu_node: GpuNode, folder: Path) -> None:
    shutil.copy(_runc(), folder / "runc.real")
    (folder / "runc").write_text(RUNC.format(folder=folder))
    (folder / "runc").chmod(0o755)
    done = gpu_node.node.run_inside("mount", "--bind", str(folder / "runc"), _runc())
    assert done.returncode == 0, done.stderr


def _kill(gpu_node: GpuNode, folder: Path) -> None:
    """Kill what a machine that loses power takes with it: shims, sandboxes, and what they wait for."""
    mounts = os.readlink(f"/proc/{gpu_node.node.holder.pid}/ns/mnt")

    def victims() -> set[int]:
        found = set(gpu_node.node.pids())
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and os.readlink(entry / "ns/mnt") == mounts:
                    command = (entry / "cmdline").read_bytes()
                    if any(word in command for word in (b"containerd-shim", b"runc", str(folder).encode())):
                        found.add(int(entry.name))
        return found

    def gone() -> bool:
        found = victims()
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not found

    until("all to be killed", gone, 30)
