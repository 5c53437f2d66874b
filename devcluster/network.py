"""Addresses of a cluster: which ones it uses, and how they are created and removed.

Everything follows from the cluster's number, so two clusters cannot collide:

    127.0.0.1:20000+100*number ...   control plane
    10.213.<number>.<node>           a node; the kubelet refuses loopback addresses, so each node gets
                                     another one, which is still on the loopback interface
    10.214.<16*number+node>.0/24     the node's pods
    10.215.<number>.0/24             services; .1 is the API server for pods

"Unreachable" routes for these ranges keep packets to removed pods on this machine.
"""

import json
import socket
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from devcluster.errors import DevclusterError

# Sixteen clusters of fifteen real nodes fit into one /16 of pods; no machine can run that many.
CLUSTERS_MAX = 16
NODES_MAX = 15
# Below Linux's range of ephemeral ports (32768 and up).
FIRST_PORT = 20000
PORTS_PER_CLUSTER = 100

FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")


@dataclass(frozen=True)
class AddressPlan:
    """The addresses of cluster `number`."""

    number: int

    @property
    def api_service(self) -> str:
        """The first service address, which Kubernetes assigns to the API server."""
        return f"10.215.{self.number}.1"

    @property
    def service_range(self) -> str:
        return f"10.215.{self.number}.0/24"

    @property
    def pod_range(self) -> str:
        return f"10.214.{self.number * 16}.0/20"

    @property
    def node_range(self) -> str:
        return f"10.213.{self.number}.0/24"

    @property
    def unused(self) -> str:
        """An address that no node gets: KWOK nodes report it as theirs."""
        return f"10.213.{self.number}.254"

    @property
    def ranges(self) -> tuple[str, ...]:
        return (self.node_range, self.pod_range, self.service_range)

    def node(self, ordinal: int) -> str:
        """The address of the cluster's real node number `ordinal`, which counts from 1."""
        if not 1 <= ordinal <= NODES_MAX:
            raise DevclusterError(f"real node number {ordinal}: a cluster has at most {NODES_MAX}")
        return f"10.213.{self.number}.{ordinal}"

    def pods(self, ordinal: int) -> str:
        """The address range of the pods on that node."""
        return f"10.214.{self.number * 16 + ordinal}.0/24"


def free_number(taken: set[int]) -> int:
    """Return a number that no cluster has and that, by the machine's routes, nothing else uses."""
    routes = _ip("route", "show").split()
    for number in range(CLUSTERS_MAX):
        if number not in taken and AddressPlan(number).node_range not in routes:
            return number
    raise DevclusterError(f"all {CLUSTERS_MAX} cluster numbers are taken", "python -m devcluster clean")


def free_port(number: int, taken: set[int]) -> int:
    """Return one of the cluster's hundred ports on which no process listens."""
    first = FIRST_PORT + number * PORTS_PER_CLUSTER
    for port in range(first, first + PORTS_PER_CLUSTER):
        if port not in taken and _is_free(port):
            return port
    raise DevclusterError(f"no free port from {first} to {first + PORTS_PER_CLUSTER - 1}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def add_address(address: str) -> None:
    _ip("address", "replace", f"{address}/32", "dev", "lo")


def remove_address(address: str) -> None:
    with suppress(DevclusterError):  # it may not exist, because the record is written first
        _ip("address", "del", f"{address}/32", "dev", "lo")


def add_unreachable(destination: str) -> None:
    _ip("route", "replace", "unreachable", destination)


def remove_unreachable(destination: str) -> None:
    with suppress(DevclusterError):
        _ip("route", "del", "unreachable", destination)


def route_here(destination: str) -> None:
    """Make all addresses of a range this machine's own, so that a process can listen on each."""
    remove_unreachable(destination)
    _ip("route", "replace", "local", destination, "dev", "lo")


def unroute_here(destination: str) -> None:
    with suppress(DevclusterError):
        _ip("route", "del", "local", destination, "dev", "lo")


def remove_pod_links(pod_range: str) -> None:
    """Remove the host's ends of pods' links; the kernel would remove them later."""
    routes: list[dict[str, str]] = json.loads(_ip("-json", "route", "show", "root", pod_range) or "[]")
    for link in sorted({route["dev"] for route in routes if route.get("dev", "").startswith("veth")}):
        with suppress(DevclusterError):
            _ip("link", "del", link)


def forwarding() -> str:
    """Whether the machine forwards packets; the CNI plugin that connects pods enables it."""
    return FORWARDING.read_text().strip()


def set_forwarding(value: str) -> None:
    if forwarding() != value:
        FORWARDING.write_text(value)


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DevclusterError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout
