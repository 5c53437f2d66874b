"""A real node: a kubelet and a containerd that share a mount namespace, as they would share a machine.

Some of the kubelet's paths are fixed (the directory of device plugins is one), so every node has directories of its
own mounted over /run, /var/lib and /var/log. They are ordinary directories of the cluster: from outside, a node's
`/var/lib/kubelet` is `<node directory>/var/lib/kubelet`, and its unix sockets can be used from there.

A small process keeps the namespace alive, so that kubelet and containerd can be killed and restarted. When the last
process in the namespace ends, the kernel removes all its mounts.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from lightkube.models.core_v1 import Taint

from devcluster import network
from devcluster.images import Image
from devcluster.pki import Pki
from devcluster.process import Process
from devcluster.record import Record
from devcluster.wait import until

START_DEADLINE_S = 30.0
CNI_PLUGINS = Path("/usr/lib/cni")
KUBELET_PORT = 10250
PRIVATE_FOLDERS = ("run", "var/lib", "var/log")

# The kubelet requires these values; the node gets files that contain them, the machine keeps its own.
_KERNEL_SETTINGS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


# Ten times as often as by default, because tests wait for what a node reports.
STATUS_EVERY_S = 1


class Node:
    """One real node. Tests may kill `kubelet` and `containerd` and start them again."""

    def __init__(
        self,
        record: Record,
        pki: Pki,
        name: str,
        *,
        kube: Path,
        containerd: Path,
        labels: Mapping[str, str],
        feature_gates: Mapping[str, bool],
        taints: Sequence[Taint] = (),
    ) -> None:
        """`kube` and `containerd` are the directories of the programs; the node registers with the taints."""
        self.name = name
        ordinal = record.nodes.index(name) + 1
        self.folder = record.folder / f"n{ordinal}"  # short, because socket paths are limited to 107 characters
        self._record = record
        self._pki = pki
        self._programs = containerd
        self._labels = dict(labels)
        self._gates = dict(feature_gates)
        self._taints = taints
        self.address = record.plan.node(ordinal)
        self._pods = record.plan.pods(ordinal)
        self._visible = (record.folder, kube, containerd)
        self.holder = self._process("namespace", self._holder_command())
        self.containerd = self._process(
            "containerd",
            [str(containerd / "containerd"), f"--config={self._etc}/containerd.toml"],
            inside=True,
            environment={"PATH": f"{containerd}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
        )
        self._status_every_s = STATUS_EVERY_S
        self.kubelet = self._process("kubelet", self._kubelet_command(kube), inside=True)
        self._added: list[Process] = []

    @property
    def components(self) -> tuple[Process, ...]:
        return (self.containerd, self.kubelet, *self._added)

    @property
    def kubelet_dir(self) -> Path:
        return self.folder / "var/lib/kubelet"

    @property
    def device_plugins_dir(self) -> Path:
        """The directory of device plugins' sockets and of the kubelet's `kubelet.sock`."""
        return self.kubelet_dir / "device-plugins"

    @property
    def plugins_registry_dir(self) -> Path:
        """The directory of DRA drivers' registration sockets."""
        return self.kubelet_dir / "plugins_registry"

    @property
    def pod_resources_socket(self) -> Path:
        return self.kubelet_dir / "pod-resources/kubelet.sock"

    @property
    def cdi_dir(self) -> Path:
        """The node's /var/run/cdi."""
        return self.folder / "run/cdi"

    @property
    def containerd_socket(self) -> Path:
        return self.folder / "run/containerd/containerd.sock"

    def restart_kubelet(self, *, status_every_s: int = STATUS_EVERY_S) -> None:
        """Restart the kubelet, which then reports changes of the node's status this often."""
        self._status_every_s = status_every_s
        (self._etc / "kubelet.json").write_text(json.dumps(self._kubelet_config(), indent=1))
        self.kubelet.stop()
        self.kubelet.start()

    def start_runtime(self) -> None:
        """Create the node's directories, address and namespace, and start containerd in it."""
        self._record.add_address(self.address)
        self._boot()

    def power_off(self, *, keep: Sequence[str] = ()) -> None:
        """Kill all that runs on the node and remove what a reboot does not keep: /run, mounts, cgroups, links.

        `keep` names directories of /run that this node has on disk, as in some distributions.
        """
        mounts = os.readlink(f"/proc/{self.holder.pid}/ns/mnt")
        until(
            f"the processes of {self.name} to die", lambda: self._kill_all(mounts), START_DEADLINE_S, every_s=0.01
        )
        for process in (self.holder, *self.components):
            process.reap()
        self._record.cgroup.remove(self.name)
        network.remove_pod_links(self._pods)
        for entry in (self.folder / "run").iterdir():
            if entry.name in keep:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def power_on(self) -> None:
        """Start the node again, including its kubelet, with its disk unchanged."""
        self._boot()
        self.kubelet.start()

    def pids(self) -> list[int]:
        """Return every process of the node's pods."""
        return self._record.cgroup.pids(self.name)

    @property
    def pod_cgroups(self) -> Path:
        """The cgroup with the processes of the node's pods, by pod and container."""
        return self._record.cgroup.node_folder(self.name)

    def _kill_all(self, mounts: str) -> bool:
        """Kill pods' processes by their cgroup and all others, such as shims, by their mount namespace."""
        found = {*self.pids(), *_in_namespace(mounts)}
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not found

    def _boot(self) -> None:
        self._make_folders()
        self._record.cgroup.create_node(self.name)
        self.holder.start()
        ready = self.folder / "run/namespace-ready"
        until(f"the mount namespace of {self.name}", self._alive(self.holder, ready.exists), START_DEADLINE_S)
        self.containerd.start()
        until(
            f"containerd of {self.name}",
            self._alive(self.containerd, lambda: self.ctr("version").returncode == 0),
            START_DEADLINE_S,
            last_state=lambda: self.containerd.tail(20),
        )

    def import_image(self, archive: Path, image: Image) -> None:
        """Import an image into the node, as a pull would."""
        done = self.ctr("--namespace=k8s.io", "images", "import", str(archive))
        if done.returncode != 0:
            raise RuntimeError(f"ctr images import of {image.reference}: {done.stderr.strip()}")

    def tag_image(self, image: Image, *references: str) -> None:
        """Give an imported image other names as well."""
        done = self.ctr("--namespace=k8s.io", "images", "tag", "--force", image.reference, *references)
        if done.returncode != 0:
            raise RuntimeError(f"ctr images tag of {image.reference}: {done.stderr.strip()}")

    def ctr(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run containerd's own client against this node."""
        command = [str(self._programs / "ctr"), f"--address={self.containerd_socket}", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def run_inside(self, *command: str) -> "subprocess.CompletedProcess[str]":
        """Run a command that sees the node's directories at their usual paths."""
        enter = ["nsenter", "--mount", f"--target={self.holder.pid}", "--"]
        return subprocess.run([*enter, *command], capture_output=True, text=True, check=False)

    def new_process(self, name: str, command: list[str], environment: Mapping[str, str] | None = None) -> Process:
        """Prepare another program on this node; it sees the node's directories at their usual paths."""
        process = self._process(name, command, inside=True, environment=environment)
        self._added.append(process)
        return process

    @property
    def _etc(self) -> Path:
        return self.folder / "etc"

    def _process(
        self,
        name: str,
        command: list[str],
        *,
        inside: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> Process:
        return Process(
            f"{self.name}-{name}",
            command,
            cgroup=self._record.cgroup,
            log=self._record.folder / "logs" / f"{self.name}-{name}.log",
            environment=environment,
            mount_namespace=(lambda: self.holder.pid) if inside else None,
        )

    @staticmethod
    def _alive(process: Process, condition: Callable[[], bool]) -> Callable[[], bool]:
        def probe() -> bool:
            process.must_run()
            return condition()

        return probe

    def _make_folders(self) -> None:
        for path in (
            "run/cdi",
            "run/containerd",
            "var/lib/kubelet/pki",
            "var/lib/containerd",
            "var/log/pods",
        ):
            (self.folder / path).mkdir(parents=True, exist_ok=True)
        (self._etc / "cni").mkdir(parents=True, exist_ok=True)
        (self._etc / "cni/10-ptp.conflist").write_text(json.dumps(self._cni_config(), indent=1))
        (self._etc / "containerd.toml").write_text(self._containerd_config())
        (self._etc / "kubelet.json").write_text(json.dumps(self._kubelet_config(), indent=1))
        for setting, value in _KERNEL_SETTINGS.items():
            (self._etc / setting.replace("/", "-")).write_text(value)

    def _holder_command(self) -> list[str]:
        lines = ["set -e", "umask 022"]
        for path in PRIVATE_FOLDERS:
            covered = self.folder / path
            for needed in self._visible:
                if needed.is_relative_to(f"/{path}"):  # for example a home directory below /var/lib
                    inner = covered / needed.relative_to(f"/{path}")
                    lines += [f"mkdir -p {_q(inner)}", f"mount --bind {_q(needed)} {_q(inner)}"]
            lines.append(f"mount --rbind {_q(covered)} /{path}")
        for setting in _KERNEL_SETTINGS:
            source, target = self._etc / setting.replace("/", "-"), f"/proc/sys/{setting}"
            lines.append(f"if [ -e {target} ]; then mount --bind {_q(source)} {target}; fi")
        lines += ["mount --make-rshared /", "touch /run/namespace-ready", "exec sleep infinity"]
        return ["unshare", "--mount", "--propagation=private", "/bin/sh", "-c", "\n".join(lines)]

    def _cni_config(self) -> dict[str, object]:
        ipam = {
            "type": "host-local",
            "ranges": [[{"subnet": self._pods}]],
            "routes": [{"dst": "0.0.0.0/0"}],
            "dataDir": "/var/lib/cni/networks",
        }
        plugin = {"type": "ptp", "ipMasq": False, "ipam": ipam}
        return {"cniVersion": "1.0.0", "name": "devcluster", "plugins": [plugin]}

    def _containerd_config(self) -> str:
        return f"""\
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
address = "/run/containerd/containerd.sock"

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "local.dev/pause:1"

[plugins.'io.containerd.cri.v1.runtime']
cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
# Lowering a score needs CAP_SYS_RESOURCE, which root has not on every machine.
restrict_oom_score_adj = true

[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["{CNI_PLUGINS}"]
conf_dir = "{self._etc}/cni"
"""

    def _kubelet_command(self, kube: Path) -> list[str]:
        flags = {
            "kubeconfig": str(self._pki.node_kubeconfig(self.name)),
            "config": f"{self._etc}/kubelet.json",
            "hostname-override": self.name,
            "node-ip": self.address,
            "cert-dir": "/var/lib/kubelet/pki",
        }
        if self._labels:
            flags["node-labels"] = ",".join(f"{key}={value}" for key, value in self._labels.items())
        return [str(kube / "kubelet"), *(f"--{flag}={value}" for flag, value in flags.items())]

    def _kubelet_config(self) -> dict[str, object]:
        serving = self._pki.node_server(self.name, self.address)
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.address,
            "port": KUBELET_PORT,
            "healthzBindAddress": self.address,
            "tlsCertFile": str(serving.certificate),
            "tlsPrivateKeyFile": str(serving.key),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(self._pki.cluster.certificate)},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self._record.cgroup.name}/{self.name}",
            "failCgroupV1": False,
            "nodeStatusUpdateFrequency": f"{self._status_every_s}s",
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            "oomScoreAdj": 0,
            # The machine has other users: its full disk must not evict a test's pods.
            "evictionHard": {},
            "imageGCHighThresholdPercent": 100,
            "makeIPTablesUtilChains": False,
            "volumePluginDir": "/var/lib/kubelet/volume-plugins",
            "resolvConf": "",
            "serializeImagePulls": False,
            "featureGates": self._gates,
            "registerWithTaints": [{"key": each.key, "effect": each.effect} for each in self._taints],
            # The kubelet restarts a container that ended twice after a second, and not after ten.
            "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},
        }


def _in_namespace(namespace: str) -> set[int]:
    """Return all processes in a mount namespace."""
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and os.readlink(entry / "ns/mnt") == namespace:
                found.add(int(entry.name))
    return found


def _q(path: Path) -> str:
    return shlex.quote(str(path))
