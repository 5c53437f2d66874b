"""vSphere: VMs of one vCenter, through pyVmomi.

pyVmomi blocks, so all calls run one after another in a thread of their own, each with a deadline on the socket. A
session that has expired is replaced by a new login, and a new login reads the credentials again, so that a Secret
may change at any time.
"""

import asyncio
import http.client
import ssl
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast
from xml.parsers.expat import ExpatError

from pyVmomi import vim, vmodl
from pyVmomi.SoapAdapter import SoapStubAdapter

from milligpu.hypervisors.host import MachineRefused
from milligpu.model.errors import BadRequest, Unavailable
from milligpu.model.machines import Machine, MachineState

# All that is called exists since then; a fixed version needs no negotiation.
_VERSION = "vim.version.v7_0"
# A vCenter under load answers within seconds.
TIMEOUT_S = 15.0
_PORT = 443
_STATES = {
    "poweredOn": MachineState.RUNNING,
    "suspended": MachineState.SUSPENDED,
    "poweredOff": MachineState.OFF,
}
_PATHS = ["name", "runtime.powerState", "runtime.host", "config.hardware.device", "recentTask"]
_RUNNING = frozenset({"running", "queued"})

_T = TypeVar("_T")
_Vgpu = vim.vm.device.VirtualPCIPassthrough
_VgpuBacking = vim.vm.device.VirtualPCIPassthrough.VmiopBackingInfo


@dataclass(frozen=True, slots=True)
class VsphereLogin:
    """Where a vCenter is, and as whom to log in."""

    host: str
    port: int
    user: str
    password: str
    authority: str = ""
    """File with the CA that signed vCenter's certificate; empty for the system's."""


def read_login(folder: Path) -> VsphereLogin:
    """Read a directory with the files of a Secret: `server`, `username`, `password`, and perhaps `ca.crt`."""
    found: dict[str, str] = {}
    for name in ("server", "username", "password"):
        try:
            found[name] = (folder / name).read_text().strip()
        except (OSError, UnicodeDecodeError):
            found[name] = ""
        if not found[name]:
            raise BadRequest(
                "--vsphere",
                str(folder),
                f"a directory with the files server, username and password: {name} is missing or empty",
            )
    host, _, port = found["server"].rpartition(":")
    if not host:
        host, port = found["server"], str(_PORT)
    if not port.isdigit() or "/" in host:
        raise BadRequest(
            "server", found["server"], "a host name with an optional port, such as vcenter.example.org"
        )
    authority = folder / "ca.crt"
    return VsphereLogin(
        host, int(port), found["username"], found["password"], str(authority) if authority.exists() else ""
    )


@dataclass(slots=True)
class _Session:
    """One login, and the VMs that were found with it."""

    stub: SoapStubAdapter
    content: Any
    machines: dict[str, Any]


class VsphereHost:
    """The VMs of one vCenter, by name."""

    def __init__(self, login: Callable[[], VsphereLogin], *, timeout_s: float = TIMEOUT_S) -> None:
        """`login` is read before each login."""
        self._login = login
        self._timeout_s = timeout_s
        self._session: _Session | None = None
        self._tasks: dict[str, str] = {}
        """The id of the last task that was started here on each VM; it outlives the session."""
        self._thread = ThreadPoolExecutor(1, "vsphere")

    async def look(self, names: Sequence[str]) -> Mapping[str, Machine]:
        return await self._call(lambda session: self._look(session, names))

    async def start(self, found: Machine, state: MachineState, profile: str = "") -> None:
        await self._call(lambda session: self._start(session, found, state, profile))

    async def cancel(self, name: str) -> None:
        def cancel(session: _Session) -> None:
            for task in self._find(session, (name,))[name].recentTask:
                if task.info.state in _RUNNING and task.info.cancelable:
                    task.CancelTask()

        try:
            await self._call(cancel)
        except (MachineRefused, KeyError):
            return  # it has ended meanwhile

    async def close(self) -> None:
        """Log out: vCenter allows a limited number of sessions."""

        def log_out() -> None:
            if self._session is not None:
                with suppress(vmodl.MethodFault, OSError, http.client.HTTPException):  # it expires anyway
                    self._session.content.sessionManager.Logout()
            self._drop()

        await asyncio.get_running_loop().run_in_executor(self._thread, log_out)
        self._thread.shutdown()

    # -- sessions ----------------------------------------------------------------------------------------------

    async def _call(self, do: Callable[[_Session], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._try, do)

    def _try(self, do: Callable[[_Session], _T]) -> _T:
        try:
            try:
                return do(self._session or self._log_in())
            except (vim.fault.NotAuthenticated, vmodl.fault.ManagedObjectNotFound):
                # The session expired, or a VM was registered again under another id.
                self._drop()
                return do(self._log_in())
        except vim.fault.InvalidLogin:
            self._drop()
            raise Unavailable("vCenter refuses the user name or the password") from None
        except vim.fault.NoPermission as error:
            raise MachineRefused(f"vCenter's user lacks the privilege {error.privilegeId}") from None
        except vmodl.MethodFault as error:
            raise MachineRefused(describe_fault(error)) from None
        except (OSError, http.client.HTTPException, ExpatError) as error:
            self._drop()
            raise Unavailable(f"vCenter does not answer: {error or type(error).__name__}") from None

    def _drop(self) -> None:
        if self._session is not None:
            self._session.stub.DropConnections()
            self._session = None

    def _log_in(self) -> _Session:
        login = self._login()
        context = ssl.create_default_context(cafile=login.authority or None)
        stub = SoapStubAdapter(
            host=login.host,
            port=login.port,
            version=_VERSION,
            sslContext=context,
            httpConnectionTimeout=self._timeout_s,
        )
        try:
            content: Any = vim.ServiceInstance("ServiceInstance", stub).RetrieveContent()
            content.sessionManager.Login(login.user, login.password, None)
        except BaseException:
            stub.DropConnections()
            raise
        self._session = _Session(stub, content, {})
        return self._session

    # -- VMs ---------------------------------------------------------------------------------------------------

    def _find(self, session: _Session, names: Sequence[str]) -> dict[str, Any]:
        """Return the VMs with these names; two of one name are refused, because either may be meant."""
        if any(name not in session.machines for name in names):
            view = session.content.viewManager.CreateContainerView(
                session.content.rootFolder, [vim.VirtualMachine], True
            )
            try:
                listed = _properties(session, [view], ["name"], from_view=True)
            finally:
                view.DestroyView()
            for name in names:
                found = [each for each, values in listed.items() if values.get("name") == name]
                if len(found) > 1:
                    raise MachineRefused(f"{len(found)} VMs are named {name}: rename all but one")
                session.machines.pop(name, None)
                if found:
                    session.machines[name] = found[0]
        return {name: session.machines[name] for name in names if name in session.machines}

    def _look(self, session: _Session, names: Sequence[str]) -> dict[str, Machine]:
        machines = self._find(session, names)
        if not machines:
            return {}
        values = _properties(session, list(machines.values()), _PATHS)
        hosts = {each["runtime.host"] for each in values.values() if each.get("runtime.host") is not None}
        able = _suspendable(session, list(hosts))
        found: dict[str, Machine] = {}
        for name, each in machines.items():
            now = values.get(each, {})
            if now.get("name") != name:
                session.machines.pop(name, None)  # renamed: it is another VM's name from now on
                continue
            profile = _profile(now.get("config.hardware.device", ()))
            found[name] = Machine(
                name,
                _STATES[str(now["runtime.powerState"])],
                profile,
                _busy(now.get("recentTask", ())),
                self._problem(session, name),
                able.get(now.get("runtime.host"), {}).get(profile, True),
            )
        return found

    def _problem(self, session: _Session, name: str) -> str:
        if name not in self._tasks:
            return ""
        try:
            info = vim.Task(self._tasks[name], session.stub).info
        except vmodl.fault.ManagedObjectNotFound:
            info = None  # vCenter forgets tasks after some minutes
        if info is None or info.state == "success":
            del self._tasks[name]
        elif info.state == "error":
            return describe_fault(info.error)
        return ""

    def _start(self, session: _Session, found: Machine, state: MachineState, profile: str) -> None:
        machine = self._find(session, (found.name,)).get(found.name)
        if machine is None:
            raise MachineRefused(f"VM {found.name} does not exist any more")
        if profile and found.state is MachineState.OFF:
            task = machine.ReconfigVM_Task(_with_profile(machine, profile))
        elif state is MachineState.RUNNING:
            task = machine.PowerOnVM_Task()
        elif state is MachineState.SUSPENDED:
            task = machine.SuspendVM_Task()
        else:
            task = machine.PowerOffVM_Task()
        self._tasks[found.name] = str(task._GetMoId())


def _properties(
    session: _Session, objects: list[Any], paths: list[str], *, from_view: bool = False
) -> dict[Any, dict[str, Any]]:
    """Read properties of many objects in one call; with `from_view`, of all VMs of a view."""
    query: Any = vmodl.query.PropertyCollector
    kind = cast("Any", vim.VirtualMachine if from_view else objects[0].__class__)
    select = [query.TraversalSpec(path="view", skip=False, type=vim.view.ContainerView)] if from_view else []
    spec = query.FilterSpec(
        propSet=[query.PropertySpec(type=kind, pathSet=paths)],
        objectSet=[query.ObjectSpec(obj=each, skip=from_view, selectSet=select) for each in objects],
    )
    collector = session.content.propertyCollector
    answer = collector.RetrievePropertiesEx([spec], query.RetrieveOptions())
    found: dict[Any, dict[str, Any]] = {}
    while answer is not None:
        for each in answer.objects:
            for missing in each.missingSet:
                raise missing.fault  # such as NotAuthenticated, once a session has expired
            found[each.obj] = {value.name: value.val for value in each.propSet}
        answer = collector.ContinueRetrievePropertiesEx(answer.token) if answer.token else None
    return found


def _suspendable(session: _Session, hosts: list[Any]) -> dict[Any, dict[str, bool]]:
    """Return for each host which profiles can be suspended; hosts say so since vSphere 6.7."""
    if not hosts:
        return {}
    path = "config.sharedGpuCapabilities"
    return {
        host: {each.vgpu: each.suspendSupported for each in values.get(path, ())}
        for host, values in _properties(session, hosts, [path]).items()
    }


def _busy(tasks: Sequence[Any]) -> str:
    for task in tasks:
        try:
            info = task.info
        except vmodl.fault.ManagedObjectNotFound:
            continue
        if info.state in _RUNNING:
            return f"task {info.descriptionId or info.name} runs since {info.startTime or info.queueTime:%H:%M:%S}"
    return ""


def _vgpus(devices: Sequence[Any]) -> list[Any]:
    return [each for each in devices if isinstance(each, _Vgpu) and isinstance(each.backing, _VgpuBacking)]


def _profile(devices: Sequence[Any]) -> str:
    return next((str(each.backing.vgpu) for each in _vgpus(devices)), "")


def _with_profile(machine: Any, profile: str) -> Any:
    """Return the change that leaves a VM with one vGPU, of this profile."""
    change = vim.vm.device.VirtualDeviceSpec
    changes = [change(operation="remove", device=each) for each in _vgpus(machine.config.hardware.device)]
    device = _Vgpu(key=-1, backing=_VgpuBacking(vgpu=profile))
    return vim.vm.ConfigSpec(deviceChange=[*changes, change(operation="add", device=device)])


def describe_fault(fault: Any) -> str:
    """Say what vCenter says, with the name of the fault, which its documentation explains."""
    text = getattr(fault, "reason", None) or getattr(fault, "localizedMessage", None) or fault.msg or ""
    name = type(fault).__name__.rpartition(".")[2]
    return f"{name}: {text}" if text and text != name else name
