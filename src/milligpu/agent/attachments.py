"""The attachments of this node on disk: for each container a record, the tenant's directory and the CDI file.

The record says what the container was granted, even if its pod or the pod's grant is gone, so a restarted agent
knows what each container holds. The CDI file is written last and deleted first: a container that can start has all
it needs.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from milligpu.agent.attachment import Attachment
from milligpu.agent.cdi import ContainerEdits, cdi_document
from milligpu.agent.driver import DRIVER, NodeDriver, share_edits, whole_edits
from milligpu.agent.time_slots import container_time_slots
from milligpu.model.errors import BadFormat, MilligpuError, NewerDocument
from milligpu.model.gpu import Gpu, GpuState
from milligpu.model.overheads import SLACK_USUAL
from milligpu.model.request import ContainerKind, container_of_uid
from milligpu.native import library
from milligpu.tenancy.folders import Folders, write_atomically
from milligpu.tenancy.tenant import CUDA, NVML, USAGE, DriverLibraries, TenantFolder, limits_page
from milligpu.tenancy.tenants import Tenants
from milligpu.tenancy.time_slots import TimeSlot, pods_frame
from milligpu.wire.documents import Document, DocumentFormat, encode, named_gpus
from milligpu.wire.grant import decode_grant, encode_grant
from milligpu.wire.limits import LimitsPage

ATTACHMENT = DocumentFormat("attachment")
_RECORD, _TENANT, _CDI = "attachment.json", "tenant", "cdi.json"
_CDI_PREFIX = "milligpu-"
# The processes of a container may run as any user, and must be able to write the usage page.
_USAGE_MODE = 0o666

log = structlog.get_logger()


class _Record(Document, frozen=True):
    container: str
    uid: str
    kinds: dict[str, ContainerKind]
    grant: str


class AttachmentStore:
    """All containers of this node that have a GPU attached."""

    def __init__(
        self,
        folder: Path,
        cdi: Path,
        driver: NodeDriver,
        ours: Mapping[str, Path],
        *,
        tenants: Tenants,
        gpus: Callable[[], Mapping[str, Gpu]],
    ) -> None:
        """`ours` are the limits libraries, by the names of the driver's libraries that they replace."""
        self._folders = Folders(folder.resolve())
        self._cdi = cdi.resolve()
        self._driver = driver
        self._ours = ours
        self._tenants = tenants
        self._gpus = gpus
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        cdi.mkdir(mode=0o755, parents=True, exist_ok=True)
        self.newer: dict[str, tuple[str, ...]] = {}
        """Attachments that a newer agent wrote, with the GPUs that they name: kept as they are."""
        self.unwritten: set[str] = set()
        """Attachments whose CDI file is of the previous agent, because the driver was not ready."""
        self.held = {each.name: each for each in self._found()}
        self._without_gpu: set[str] = set()
        """Attachments of the previous agent that are no tenants yet, because a GPU of theirs is gone."""

    def attach(self, attached: Attachment) -> None:
        """Make what the container needs; the CDI file comes last, because with it the container can start."""
        if attached.name not in self.held:
            page = None if attached.whole else self._page(attached, {**self.held, attached.name: attached})
            with self._folders.make(attached.name) as folder:
                write_atomically(folder / _RECORD, _encode(attached), lasting=False)
                if page is not None:
                    self._make_tenant(folder / _TENANT, page)
            try:
                if page is not None:
                    self._tenants.add(attached.name, self._tenant(attached.name), page)
            except (MilligpuError, OSError):
                self._folders.delete(attached.name)
                raise
            self.held[attached.name] = attached
            self.write_pages()
        self._write_cdi_file(attached)

    @staticmethod
    def _make_tenant(folder: Path, page: LimitsPage) -> None:
        tenant = TenantFolder.make(folder, page, DriverLibraries(DRIVER / CUDA, DRIVER / NVML), 0)
        (tenant.folder / USAGE).chmod(_USAGE_MODE)

    def resize(self, attached: Attachment) -> None:
        """Apply a later generation of the grant; the record comes first, so after a crash the page follows it."""
        self.held[attached.name] = attached
        write_atomically(self._folders.path(attached.name) / _RECORD, _encode(attached), lasting=False)
        self.write_pages()

    def detach(self, name: str) -> None:
        """Delete everything of a container that will not start again."""
        self._tenants.remove(name)
        self._without_gpu.discard(name)
        self._cdi_file(name).unlink(missing_ok=True)
        newer = self.newer.pop(name, None)
        if self.held.pop(name, None) is not None or newer is not None:
            self._folders.delete(name)
            self.write_pages()

    def refresh_driver(self) -> str:
        """Look at the driver again; return why no container can be attached now."""
        return self._driver.refresh(
            [uuid for uuid, gpu in self._gpus().items() if gpu.state is not GpuState.UNHEALTHY]
        )

    def restore(self, *, driver_ready: bool = True) -> None:
        """Take over what the previous agent left, after it was killed or the node was rebooted."""
        for file in self._cdi.glob(f"{_CDI_PREFIX}*.json*"):
            name = file.name.removeprefix(_CDI_PREFIX).removesuffix(".json")
            if name not in self.held and name not in self.newer:
                file.unlink(missing_ok=True)
        for name, each in self.held.items():
            if not each.whole:
                self._without_gpu.add(name)
        self._add_tenants()
        self.unwritten = set(self.held)
        if driver_ready:
            self.write_cdi_files()

    def write_cdi_files(self) -> None:
        """Write the CDI files of restored attachments with the driver as it is now."""
        while self.unwritten:
            each = self.held.get(self.unwritten.pop())
            if each is not None:
                self._write_cdi_file(each)

    def _add_tenants(self) -> None:
        """Let restored containers take turns whose GPUs are there."""
        for name in sorted(self._without_gpu):
            page = self._page(self.held[name], self.held)
            if page is not None:
                self._tenants.add(name, self._tenant(name), page)
                self._without_gpu.discard(name)

    def write_pages(self) -> None:
        """Bring every limits page up to date: a container that starts or ends moves the time slots of others."""
        self._add_tenants()
        for name, each in self.held.items():
            page = self._page(each, self.held) if name in self._tenants else None
            if page is not None:
                self._tenants.change(name, page)

    def _page(self, attached: Attachment, held: Mapping[str, Attachment]) -> LimitsPage | None:
        """Make the page; None when a GPU of the container is no longer on this node."""
        gpus = self._gpus()
        own = attached.shares
        if any(held.gpu not in gpus or held.gpu not in self._driver.overheads for held in own):
            return None
        slots = {each.gpu: self._time_slots(gpus[each.gpu], held)[attached.name] for each in own}
        return limits_page(attached.grant, own, gpus, slots, self._driver.overheads)

    def slack_bytes(self, gpu: str) -> int:
        """Return what the driver may count for a process on this GPU beyond its usage page."""
        known = self._driver.overheads.get(gpu)
        return known.slack_bytes if known else SLACK_USUAL

    @staticmethod
    def _time_slots(gpu: Gpu, held: Mapping[str, Attachment]) -> dict[str, TimeSlot]:
        on_gpu = [each for each in held.values() if each.uses(gpu.uuid)]
        return container_time_slots(gpu.uuid, on_gpu, gpu.policy, pods_frame(gpu), capacity=gpu.milli)

    def _tenant(self, name: str) -> TenantFolder:
        return TenantFolder(self._folders.path(name) / _TENANT)

    def _write_cdi_file(self, attached: Attachment) -> None:
        """Write the file into the container's directory, and link to it where the runtime looks.

        So both are deleted together. A CDI file that outlived the directory would let a container start and fail,
        and a container that may start only once would be lost.
        """
        real = self._folders.path(attached.name) / _CDI
        write_atomically(real, cdi_document(attached.name, self._edits(attached)), lasting=False)
        link = self._cdi_file(attached.name)
        fresh = link.with_name(f"{link.name}.tmp")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(os.path.relpath(real, self._cdi))
        fresh.rename(link)

    def _edits(self, attached: Attachment) -> ContainerEdits:
        gpus = [held.gpu for held in attached.shares]
        if attached.whole:
            return whole_edits(self._driver, gpus)
        return share_edits(self._driver, self._ours, gpus, self._tenant(attached.name).folder, USAGE)

    def _cdi_file(self, name: str) -> Path:
        return self._cdi / f"{_CDI_PREFIX}{name}.json"

    def _found(self) -> list[Attachment]:
        found: list[Attachment] = []
        for name, path in self._folders.entries():
            try:
                record = _decode(path) if path.name == name else None
            except NewerDocument as error:
                self.newer[name] = named_gpus((path / _RECORD).read_bytes())
                log.warning("Kept an attachment that a newer agent wrote", name=name, error=error.message)
                continue
            if record is None:
                # Incomplete or unreadable: its container cannot start, and the plan attaches it again.
                self._cdi_file(name).unlink(missing_ok=True)
                self._folders.delete(name)
            else:
                found.append(record)
        return found


def our_libraries() -> dict[str, Path]:
    """Return the limits libraries by the names of the driver's libraries."""
    return {name: library(f"enforce/{name}") for name in (CUDA, NVML)}


def _encode(attached: Attachment) -> str:
    holder = attached.holder
    record = _Record(
        ATTACHMENT.version, holder.container, holder.uid, dict(attached.kinds), encode_grant(attached.grant)
    )
    return encode(record)


def _decode(folder: Path) -> Attachment | None:
    try:
        raw = ATTACHMENT.decode((folder / _RECORD).read_bytes(), _Record)
        holder = container_of_uid(raw.uid, raw.container)
        return Attachment(folder.name, holder, decode_grant(raw.grant), raw.kinds)
    except NewerDocument:
        raise
    except (BadFormat, OSError):
        return None
