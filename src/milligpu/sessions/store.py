"""The sessions on disk: a directory each, with the record, the limits library and the tenant's pages."""

import secrets
from pathlib import Path

from milligpu.model.errors import BadFormat, NewerDocument
from milligpu.native import library
from milligpu.sessions.record import Session, decode_session, encode_session
from milligpu.tenancy.folders import Folders, write_atomically
from milligpu.tenancy.tenant import CUDA, NVML, DriverLibraries, TenantFolder
from milligpu.wire.documents import named_gpus
from milligpu.wire.limits import LimitsPage

_RECORD, _TENANT = "session.json", "tenant"


class SessionStore:
    """All sessions of one service."""

    def __init__(self, root: Path) -> None:
        self._folders = Folders(root)
        self.newer: dict[str, tuple[str, ...]] = {}
        """The sessions that a newer milligpu wrote, with the GPUs that their records name: kept as they are."""

    def uses_pages(self, maps: str, session: str) -> bool:
        """Whether a process with these memory maps has the session's pages open."""
        return f" {self._folders.path(session)}/" in maps or f" {self._folders.hidden(session)}/" in maps

    def folder(self, session: str) -> Path:
        return self._folders.path(session)

    def tenant(self, session: str) -> TenantFolder:
        return TenantFolder(self.folder(session) / _TENANT)

    def new_id(self) -> str:
        """Return a short ID that no session has."""
        while (name := secrets.token_hex(3)) and self.folder(name).exists():
            pass
        return name

    def add(self, session: Session, page: LimitsPage | None, drivers: DriverLibraries) -> None:
        """Write a session; without a limits page it has whole GPUs."""
        with self._folders.make(session.id) as folder:
            (folder / _RECORD).write_text(encode_session(session))
            if page is not None:
                TenantFolder.make(folder / _TENANT, page, drivers, session.process.uid)
                (folder / CUDA).symlink_to(library(f"enforce/{CUDA}"))
                (folder / NVML).symlink_to(library(f"enforce/{NVML}"))

    def change(self, session: Session) -> None:
        """Rewrite the record. This comes before the limits page: after a crash the page follows the record."""
        write_atomically(self.folder(session.id) / _RECORD, encode_session(session), lasting=False)

    def close(self, session: str) -> None:
        """Hide the pages of a session whose command has ended: no further process can open them."""
        self._folders.hide(session)

    def remove(self, session: str) -> None:
        self._folders.delete(session)

    def found(self) -> tuple[list[tuple[Session, bool]], list[str]]:
        """List the sessions, each with whether it is open, and the names of those whose record cannot be read.

        What a killed service was still writing was granted to no command, so it counts as closed. Sessions
        of a newer milligpu are in neither list: see `newer`.
        """
        self.newer = {}
        sessions: list[tuple[Session, bool]] = []
        broken: list[str] = []
        for name, path in self._folders.entries():
            try:
                session = decode_session((path / _RECORD).read_bytes())
            except NewerDocument:
                self.newer[name] = named_gpus((path / _RECORD).read_bytes())
                continue
            except (BadFormat, OSError):
                session = None
            if session is not None and session.id == name:
                sessions.append((session, path.name == name))
            else:
                broken.append(name)
        return sorted(sessions, key=lambda found: found[0].since), broken
