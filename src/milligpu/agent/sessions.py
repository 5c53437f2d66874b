"""The sessions' folders: made whole or not at all, found again after a restart, gone when nobody uses them."""

import secrets
import shutil
from pathlib import Path

from milligpu.agent.record import Session, decode_session, encode_session
from milligpu.agent.tenant import CUDA, NVML, Drivers, Tenant
from milligpu.model.errors import BadFormat
from milligpu.native import library
from milligpu.wire.limits import LimitsPage

_RECORD, _TENANT = "session.json", "tenant"
# A name that starts so is being made or taken away.
_UNFINISHED = "."


class Sessions:
    """All sessions of one agent, as they are on disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def holds(self, maps: str, session: str) -> bool:
        """Whether a process with these memory maps uses the session's pages."""
        return f" {self.folder(session)}/" in maps or f" {self._unfinished(session)}/" in maps

    def folder(self, session: str) -> Path:
        """Where a session's files are."""
        return self._folder / session

    def tenant(self, session: str) -> Tenant:
        """Its pages."""
        return Tenant(self.folder(session) / _TENANT)

    def new_id(self) -> str:
        """A short name that nobody has."""
        while (self._folder / (name := secrets.token_hex(3))).exists():
            pass
        return name

    def add(self, session: Session, page: LimitsPage | None, drivers: Drivers) -> None:
        """Write a session down; it exists from the moment of the rename. Without a page it has whole GPUs."""
        self._folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        making = self._unfinished(session.id)
        making.mkdir(mode=0o755)
        try:
            self._fill(making, session, page, drivers)
            making.rename(self.folder(session.id))
        except BaseException:
            shutil.rmtree(making, ignore_errors=True)
            raise

    @staticmethod
    def _fill(making: Path, session: Session, page: LimitsPage | None, drivers: Drivers) -> None:
        (making / _RECORD).write_text(encode_session(session))
        if page is not None:
            Tenant.make(making / _TENANT, page, drivers, session.process.uid)
            (making / CUDA).symlink_to(library(f"enforce/{CUDA}"))
            (making / NVML).symlink_to(library(f"enforce/{NVML}"))

    def change(self, session: Session) -> None:
        """Write a changed session down, before its page is changed: after a crash the page follows the record."""
        record = self.folder(session.id) / _RECORD
        new = record.with_suffix(".new")
        new.write_text(encode_session(session))
        new.rename(record)

    def close(self, session: str) -> None:
        """Its command has gone: from the moment of the rename no process can open its pages any more."""
        if self.folder(session).exists():
            self.folder(session).rename(self._unfinished(session))

    def remove(self, session: str) -> None:
        """Nothing of it is left."""
        shutil.rmtree(self._unfinished(session), ignore_errors=True)

    def found(self) -> tuple[list[tuple[Session, bool]], list[str]]:
        """Those written down, each with whether it is open, and the names of those whose record does not read.

        What was being made when an agent died was never told to anybody, and is like what was being closed.
        """
        sessions: list[tuple[Session, bool]] = []
        broken: list[str] = []
        for entry in sorted(self._folder.iterdir()) if self._folder.exists() else ():
            name = entry.name.removeprefix(_UNFINISHED)
            try:
                session = decode_session((entry / _RECORD).read_bytes())
            except (BadFormat, OSError):
                session = None
            if session is not None and session.id == name:
                sessions.append((session, entry.name == name))
            else:
                broken.append(name)
        return sorted(sessions, key=lambda found: found[0].since), broken

    def _unfinished(self, session: str) -> Path:
        return self._folder / (_UNFINISHED + session)
