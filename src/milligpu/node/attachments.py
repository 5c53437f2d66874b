"""What containers hold on this node, as it is on disk: a record and a tenant's folder each, and the CDI file.

The record is what a container was given, whatever becomes of its pod or of the pod's grant; so an agent that was
killed knows what is held, and by whom. The CDI file comes last and goes first: a container that can start has all
that it needs.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from milligpu.agent.slots import FRAME, Slot
from milligpu.agent.tenant import CUDA, NVML, USAGE, Drivers, Tenant, limits_page
from milligpu.model.errors import BadFormat
from milligpu.model.grant import GpuShare
from milligpu.model.request import Kind
from milligpu.native import library
from milligpu.node.attach import Attached
from milligpu.node.cdi import Edits, document
from milligpu.node.checks import Tenancy
from milligpu.node.driver import DRIVER, Driver, share_edits, whole_edits
from milligpu.node.frame import frame
from milligpu.node.ledger import write_safely
from milligpu.wire.grant import decode_grant, encode_grant
from milligpu.wire.json import VERSION, Document, decode, encode
from milligpu.wire.limits import LimitsPage

_RECORD, _TENANT, _CDI = "attachment.json", "tenant", "cdi.json"
# A name that starts so is being made or taken away.
_UNFINISHED = "."
_CDI_PREFIX = "milligpu-"
# Inside a container the usage page must be writable for whichever user its processes run as.
_USAGE_MODE = 0o666


class _Record(Document, frozen=True):
    container: str
    uid: str
    kinds: dict[str, Kind]
    grant: str


class Attachments:
    """All containers of this node that hold something."""

    def __init__(
        self,
        folder: Path,
        cdi: Path,
        driver: Driver,
        ours: Mapping[str, Path],
        frame: Callable[[str], Slot] = lambda _gpu: FRAME,
    ) -> None:
        """`ours` are the libraries that stand in the driver's place, by the driver's names.

        `frame` is the part of a card's frame that is for pods.
        """
        self._folder = folder.resolve()
        self._cdi = cdi.resolve()
        self._driver = driver
        self._ours = ours
        self._frame = frame
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        cdi.mkdir(mode=0o755, parents=True, exist_ok=True)
        self.held = {each.name: each for each in self._found()}
        self._written: dict[str, LimitsPage] = {}
        """The pages as we last wrote them; one of an agent before us is not among them."""

    def tenant(self, name: str) -> Tenant:
        """A container's pages."""
        return Tenant(self._folder / name / _TENANT)

    def attach(self, attached: Attached) -> None:
        """Make what the container needs, and then let it start."""
        if attached.name not in self.held:
            making = self._folder / (_UNFINISHED + attached.name)
            shutil.rmtree(making, ignore_errors=True)
            making.mkdir(mode=0o755)
            write_safely(making / _RECORD, _encode(attached), lasting=False)
            if not is_whole(attached):
                self._make_tenant(making / _TENANT, attached)
            making.rename(self._folder / attached.name)
            self.held[attached.name] = attached
            self._write_pages()
        self._write_file(attached)

    def _make_tenant(self, folder: Path, attached: Attached) -> None:
        slots = self._slots({**self.held, attached.name: attached})[attached.name]
        page = self._page(attached, slots)
        tenant = Tenant.make(folder, page, Drivers(DRIVER / CUDA, DRIVER / NVML), 0)
        (tenant.folder / USAGE).chmod(_USAGE_MODE)
        self._written[attached.name] = page

    def _page(self, attached: Attached, slots: Mapping[str, Slot]) -> LimitsPage:
        return limits_page(attached.tenancy.grant, shares(attached), slots, self._driver.contexts)

    def resize(self, attached: Attached) -> None:
        """Another generation of its grant: written down first, so that after a crash the page follows."""
        self.held[attached.name] = attached
        write_safely(self._folder / attached.name / _RECORD, _encode(attached), lasting=False)
        self._write_pages()

    def detach(self, name: str) -> None:
        """Its container will not start again."""
        self._file(name).unlink(missing_ok=True)
        if self.held.pop(name, None) is not None:
            going = self._folder / (_UNFINISHED + name)
            (self._folder / name).rename(going)
            shutil.rmtree(going, ignore_errors=True)
            self._written.pop(name, None)
            self._write_pages()

    def restore(self) -> None:
        """Let files and pages follow the records, whatever an agent that was killed, or a reboot, left of them."""
        for file in self._cdi.glob(f"{_CDI_PREFIX}*.json*"):
            if file.name.removeprefix(_CDI_PREFIX).removesuffix(".json") not in self.held:
                file.unlink(missing_ok=True)
        self._write_pages()
        for each in self.held.values():
            self._write_file(each)

    def _write_file(self, attached: Attached) -> None:
        """The file is in the container's folder, and where the runtime looks a link: they go together.

        A file that outlived what it names would let a container begin that cannot start, and of those that are
        started only once that is the end.
        """
        real = self._folder / attached.name / _CDI
        write_safely(real, document(attached.name, self._edits(attached)), lasting=False)
        link = self._file(attached.name)
        fresh = link.with_name(f"{link.name}.tmp")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(os.path.relpath(real, self._cdi))
        fresh.rename(link)

    def _edits(self, attached: Attached) -> Edits:
        gpus = [share.gpu for share in shares(attached)]
        if is_whole(attached):
            return whole_edits(self._driver, gpus)
        return share_edits(self._driver, self._ours, gpus, self._folder / attached.name / _TENANT, USAGE)

    def _write_pages(self) -> None:
        """Who comes or goes moves the slots of others."""
        slots = self._slots(self.held)
        for name, each in self.held.items():
            page = None if is_whole(each) else self._page(each, slots[name])
            if page is not None and self._written.get(name) != page:
                self.tenant(name).change(page)
                self._written[name] = page

    def _slots(self, held: Mapping[str, Attached]) -> dict[str, dict[str, Slot]]:
        found: dict[str, dict[str, Slot]] = {name: {} for name in held}
        for gpu in {share.gpu for each in held.values() for share in shares(each) if not share.whole}:
            here = [each for each in held.values() if any(share.gpu == gpu for share in shares(each))]
            for name, slot in frame(gpu, here, self._frame(gpu)).items():
                found[name][gpu] = slot
        return found

    def _file(self, name: str) -> Path:
        return self._cdi / f"{_CDI_PREFIX}{name}.json"

    def _found(self) -> list[Attached]:
        found: list[Attached] = []
        for entry in sorted(self._folder.iterdir()):
            record = None if entry.name.startswith(_UNFINISHED) else _decode(entry)
            if record is None:
                # Never finished, or spoilt: its container cannot start, and the plan makes it anew.
                self._file(entry.name).unlink(missing_ok=True)
                shutil.rmtree(entry, ignore_errors=True)
            else:
                found.append(record)
        return found


def shares(attached: Attached) -> tuple[GpuShare, ...]:
    """What this container holds of each of its cards."""
    return attached.tenancy.grant.containers[attached.container]


def our_libraries() -> dict[str, Path]:
    """The limits libraries under the driver's names."""
    return {name: library(f"enforce/{name}") for name in (CUDA, NVML)}


def is_whole(attached: Attached) -> bool:
    """Whether it has its cards to itself."""
    return any(share.whole for share in shares(attached))


def _encode(attached: Attached) -> str:
    tenancy = attached.tenancy
    return encode(
        _Record(VERSION, attached.container, tenancy.uid, dict(tenancy.kinds), encode_grant(tenancy.grant))
    )


def _decode(folder: Path) -> Attached | None:
    try:
        raw = decode("attachment", (folder / _RECORD).read_bytes(), _Record)
        return Attached(folder.name, raw.container, Tenancy(raw.uid, decode_grant(raw.grant), raw.kinds))
    except (BadFormat, OSError):
        return None
