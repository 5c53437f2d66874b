"""The record of everything a cluster creates, by which a dead cluster can be removed.

A test process can be killed at any moment. So each resource is recorded before it is created, and the next cluster
to start first removes those whose owner is dead. Stopping a cluster uses the same code, so it is exercised all the
time.
"""

import fcntl
import json
import os
import re
import shutil
import subprocess
import threading
import uuid
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from devcluster import network
from devcluster.cgroups import ClusterCgroup
from devcluster.errors import DevclusterError

FOLDER_VARIABLE = "MILLIGPU_CLUSTERS"
# Short, because the path of a unix socket is limited to 108 bytes.
DEFAULT_FOLDER = "/tmp/milligpu-clusters"
FOLDER_LENGTH_MAX = 30
# Several threads start nodes, and all write to the record.
_changing = threading.RLock()
NAME_PATTERN = re.compile(r"[a-z][a-z0-9-]{0,14}")


class DamagedRecord(DevclusterError):
    """A record that cannot be read; its cluster is removed by name alone."""


@dataclass(frozen=True)
class Owner:
    """A process, distinguished from a later one with the same PID by its start time."""

    pid: int
    started: int

    @classmethod
    def current(cls) -> "Owner":
        return cls(os.getpid(), _started(os.getpid()) or 0)

    def is_alive(self) -> bool:
        return _started(self.pid) == self.started


@dataclass
class Record:
    """Everything that a cluster has on this machine; `folder` holds its files and this record."""

    folder: Path
    name: str
    number: int
    boot: str
    owner: Owner | None
    """None if a person started the cluster, which then outlives the command that started it."""
    identity: str = ""
    """Distinguishes this cluster from a later one with the same name."""
    ports: dict[str, int] = field(default_factory=dict[str, int])
    addresses: list[str] = field(default_factory=list[str])
    routes: list[str] = field(default_factory=list[str])
    nodes: list[str] = field(default_factory=list[str])

    @property
    def cgroup(self) -> ClusterCgroup:
        return ClusterCgroup(f"milligpu-{self.name}")

    @property
    def plan(self) -> network.AddressPlan:
        return network.AddressPlan(self.number)

    def save(self) -> None:
        """Write the record atomically."""
        with _changing:
            content = {key: value for key, value in asdict(self).items() if key != "folder"}
            draft = self.folder / "record.json.new"
            draft.write_text(json.dumps(content, indent=2) + "\n")
            draft.rename(self.folder / "record.json")

    @classmethod
    def load(cls, folder: Path) -> "Record":
        """Read a record. Extra fields are skipped and missing ones are empty, so that a cluster of another version
        of this code can be removed, too.
        """
        try:
            content: dict[str, Any] = json.loads((folder / "record.json").read_text())
        except json.JSONDecodeError as error:
            raise DamagedRecord(f"{folder}/record.json is damaged: {error}", "python -m devcluster clean") from None
        owner = content.pop("owner")
        known = {each.name for each in fields(cls)}
        content = {key: value for key, value in content.items() if key in known}
        return cls(folder=folder, owner=Owner(**owner) if owner else None, **content)

    def is_abandoned(self) -> bool:
        """Whether no process will stop this cluster: its owner died, or the machine was rebooted."""
        if self.boot != _boot_id():
            return True
        return self.owner is not None and not self.owner.is_alive()

    def detach(self) -> None:
        """Hand the cluster over to a person: from now on it stays until it is removed by command."""
        self.owner = None
        self.save()

    def port(self, purpose: str) -> int:
        """Return the port for this purpose, which stays the same when the component restarts."""
        with _changing:
            if purpose not in self.ports:
                self.ports[purpose] = network.free_port(self.number, set(self.ports.values()))
                self.save()
            return self.ports[purpose]

    def add_node(self, name: str) -> None:
        with _changing:
            if name in self.nodes:
                raise DevclusterError(f"node {name!r} exists already")
            self.nodes.append(name)
            self.save()

    def add_address(self, address: str) -> None:
        with _changing:
            self.addresses.append(address)
            self.save()
        network.add_address(address)

    def add_routes(self) -> None:
        self.routes = list(self.plan.ranges)
        self.save()
        for destination in self.routes:
            network.add_unreachable(destination)


class Clusters:
    """The directory of all clusters on this machine; changes are made under its lock."""

    def __init__(self, folder: Path) -> None:
        if len(str(folder)) > FOLDER_LENGTH_MAX:
            raise DevclusterError(
                f"{FOLDER_VARIABLE}={folder}: at most {FOLDER_LENGTH_MAX} characters, "
                "for the sake of the unix sockets below it"
            )
        self.folder = folder

    @classmethod
    def of_this_machine(cls) -> "Clusters":
        return cls(Path(os.environ.get(FOLDER_VARIABLE) or DEFAULT_FOLDER))

    def claim(self, name: str) -> Record:
        """Remove abandoned clusters, then reserve a free name and number."""
        if not NAME_PATTERN.fullmatch(name):
            raise DevclusterError(
                f"cluster name {name!r}: want a letter, then at most 14 letters, digits or '-', in lower case"
            )
        with self._locked():
            self._sweep()
            alive = self._records()
            if any(record.name == name for record in alive):
                raise DevclusterError(f"cluster {name!r} is up already", f"python -m devcluster down --name {name}")
            number = network.free_number({record.number for record in alive})
            folder = self.folder / name
            folder.mkdir(mode=0o700)
            record = Record(folder, name, number, _boot_id(), Owner.current(), uuid.uuid4().hex)
            record.save()
            self._remember_forwarding()
            return record

    def find(self, name: str) -> Record | None:
        """Return the record of a running cluster."""
        with suppress(FileNotFoundError):
            return Record.load(self.folder / name)
        return None

    def all(self) -> list[Record]:
        with self._locked():
            return self._records()

    def remove(self, record: Record) -> None:
        """Remove every trace of a cluster. Safe to repeat, also after an interrupted removal."""
        with self._locked():
            current = self.find(record.name)
            if current is not None and current.identity == record.identity:
                self._remove(current)
            self._restore_forwarding()

    def sweep(self) -> list[str]:
        """Remove the clusters whose owner is dead; returns their names."""
        with self._locked():
            return self._sweep()

    @contextmanager
    def _locked(self) -> Generator[None]:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = self.folder.stat()
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            # Otherwise another user could replace files that root is about to trust.
            raise DevclusterError(f"{self.folder} must belong to you alone (mode 0700)", f"rm -r {self.folder}")
        with (self.folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _records(self) -> list[Record]:
        return [Record.load(path.parent) for path in sorted(self.folder.glob("*/record.json"))]

    def _sweep(self) -> list[str]:
        for folder in self.folder.iterdir():
            if folder.is_dir() and not (folder / "record.json").exists():
                _remove_folder(folder)  # its owner died before it wrote the record, so before it created anything
            elif folder.is_dir():
                self._remove_damaged(folder)
        dead = [record for record in self._records() if record.is_abandoned()]
        for record in dead:
            self._remove(record)
        self._restore_forwarding()
        return [record.name for record in dead]

    @staticmethod
    def _remove_damaged(folder: Path) -> None:
        """Remove a cluster whose record cannot be read; an address may stay until its number is used again."""
        try:
            Record.load(folder)
        except DamagedRecord:
            cgroup = ClusterCgroup(f"milligpu-{folder.name}")
            cgroup.kill()
            cgroup.remove()
            _remove_folder(folder)

    def _remove(self, record: Record) -> None:
        # Processes first: mount and network namespaces end with their last process.
        record.cgroup.kill()
        record.cgroup.remove()
        network.remove_pod_links(record.plan.pod_range)
        for destination in record.routes:
            network.remove_unreachable(destination)
        network.unroute_here(record.plan.service_range)
        for address in record.addresses:
            network.remove_address(address)
        _remove_folder(record.folder)

    @property
    def _forwarding_file(self) -> Path:
        return self.folder / ".ip-forward-before"

    def _remember_forwarding(self) -> None:
        """Clusters share the machine's forwarding setting: the first one saves it, the last one restores it."""
        if not self._forwarding_file.exists():
            self._forwarding_file.write_text(network.forwarding())

    def _restore_forwarding(self) -> None:
        if self._forwarding_file.exists() and not self._records():
            network.set_forwarding(self._forwarding_file.read_text())
            self._forwarding_file.unlink()


def _remove_folder(folder: Path) -> None:
    """Remove a cluster's directory, the record last, so that an interrupted removal can be resumed."""
    for mount in _mounts_below(folder):
        subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)
    if _mounts_below(folder):
        raise DevclusterError(f"something is still mounted below {folder}; its files are left alone")
    for child in folder.iterdir():
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child)
        elif child.name != "record.json":
            child.unlink()
    (folder / "record.json").unlink(missing_ok=True)
    folder.rmdir()


def _mounts_below(folder: Path) -> list[str]:
    """Mounts in our own namespace; normally there are none, because nodes have their own."""
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [mount for mount in reversed(mounts) if mount.startswith(f"{folder}/")]


def _started(pid: int) -> int | None:
    """When the process started, in ticks since boot; None if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()  # the process name before it may contain any character
    state, started = fields[0], int(fields[19])
    return None if state == "Z" else started


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
