"""Checks of a machine's network: subnets, MTU of fast interfaces, errors and drops, from sysfs."""

import fcntl
import ipaddress
import itertools
import socket
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from milligpu.checks.result import CheckLevel, CheckResult, failed, passed, skipped

SYS = Path("/sys/class/net")
# 10 GbE and faster: there, packets of 1500 bytes cost more CPU time than the copies themselves.
_FAST_MBPS = 10_000
_MTU_MIN = 4096
_COUNTERS = ("rx_errors", "tx_errors", "rx_dropped", "tx_dropped")
_SIOCGIFADDR, _SIOCGIFNETMASK = 0x8915, 0x891B
_NAME_MAX = 15


@dataclass(frozen=True, slots=True)
class NetworkInterface:
    """One interface, as the kernel reports it."""

    name: str
    mtu: int
    mbps: int | None = None
    """None where the driver does not say, as for most virtual ones."""
    network: str = ""
    """Its IPv4 subnet; empty without an address."""
    errors: Mapping[str, int] | None = None
    """Counters that are not 0, by the path of their file."""


def read_interfaces(sys: Path = SYS) -> list[NetworkInterface]:
    """Read the machine's own interfaces, without loopback; in a container, the virtual ones."""
    found = [path for path in sorted(sys.iterdir()) if path.name != "lo" and (path / "mtu").exists()]
    # A node has a virtual interface for each pod; a pod has nothing else.
    physical = [path for path in found if (path / "device").exists()]
    return [_read(path) for path in physical or found]


def _read(path: Path) -> NetworkInterface:
    counters = {str(path / "statistics" / name): _number(path / "statistics" / name) for name in _COUNTERS}
    speed = _number(path / "speed")
    return NetworkInterface(
        path.name,
        _number(path / "mtu") or 0,
        speed if speed and speed > 0 else None,
        _subnet(path.name),
        {file: count for file, count in counters.items() if count},
    )


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _subnet(name: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            address, mask = (
                socket.inet_ntoa(fcntl.ioctl(probe, request, struct.pack("256s", name.encode()[:_NAME_MAX]))[20:24])
                for request in (_SIOCGIFADDR, _SIOCGIFNETMASK)
            )
        except OSError:
            return ""
    return str(ipaddress.ip_network(f"{address}/{mask}", strict=False))


def check_subnets(interfaces: Iterable[NetworkInterface]) -> Iterable[CheckResult]:
    """Two interfaces in one subnet send answers over the wrong one."""
    name = "Interface/Subnet Compatibility"
    with_address = [each for each in interfaces if each.network]
    if not with_address:
        yield skipped(name, "no interface has an IPv4 address", "configure an address, or ignore it with IPv6")
        return
    for one, other in itertools.combinations(with_address, 2):
        if ipaddress.ip_network(one.network).overlaps(ipaddress.ip_network(other.network)):
            yield failed(
                name,
                f"{one.name} ({one.network}) and {other.name} ({other.network}) are in one subnet",
                "give each interface a subnet of its own, or bond them",
                CheckLevel.WARNING,
            )
            return
    yield passed(name, "network interfaces and subnets configured correctly")


def check_mtu(interfaces: Iterable[NetworkInterface]) -> Iterable[CheckResult]:
    """Fast interfaces have large packets."""
    name = "MTU Size"
    fast = [each for each in interfaces if each.mbps is not None and each.mbps >= _FAST_MBPS]
    low = [each for each in fast if each.mtu < _MTU_MIN]
    for each in low:
        message = f"{each.mbps}Mbps interface {each.name} has low MTU: {each.mtu} < 4K"
        fix = f"set it on both ends and the switches between: ip link set {each.name} mtu 9000"
        yield failed(name, message, fix, CheckLevel.WARNING)
    if not low:
        yield passed(name, "hi-speed interfaces MTU >= 4K" if fast else "no hi-speed interface")


def check_errors(interfaces: Iterable[NetworkInterface]) -> Iterable[CheckResult]:
    """Lost packets make every wait for the network longer."""
    name = "Network Errors/Drops"
    found = [(file, count) for each in interfaces for file, count in (each.errors or {}).items()]
    for file, count in found:
        kind = "drops" if file.endswith("dropped") else "errors"
        message = f"{kind} reported in file: {file} ({count})"
        fix = "look at: ethtool -S INTERFACE; check cables, buffers (ethtool -g) and the switch"
        yield failed(name, message, fix, CheckLevel.WARNING)
    if not found:
        yield passed(name, "found no errors or packet drops")
