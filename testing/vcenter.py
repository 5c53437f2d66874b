"""A vCenter in software: `devcluster/go/vcsim`, with cards, profiles and faults."""

import json
import subprocess
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devcluster import build
from devcluster.report import to_stderr

USER, PASSWORD = "milligpu", "secret"
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class SimulatedVcenter:
    """A running simulator, and the directory with which a client logs in."""

    folder: Path
    control: str

    def set(self, *machines: tuple[str, str, str]) -> None:
        """Make the VMs be so, by name, profile and power state, without faults; forget what was refused."""
        keys = ("name", "profile", "state")
        self._ask("POST", "/machines", [dict(zip(keys, each, strict=True)) for each in machines])

    def states(self) -> dict[str, str]:
        """Return the power state of each VM."""
        found = self._ask("GET", "/machines")["machines"]
        return {each["name"]: each["state"] for each in found if not each["name"].startswith("unused-")}

    def profiles(self) -> dict[str, str]:
        """Return the vGPU profile of each VM."""
        return {each["name"]: each["profile"] for each in self._ask("GET", "/machines")["machines"]}

    def refused(self) -> list[str]:
        """Return the attempts to give a card twice."""
        return self._ask("GET", "/machines")["refused"]

    def fault(self, method: str, kind: str, **more: Any) -> None:
        """Let something happen at the next call, or the next `count` ones; see `devcluster/go/vcsim/main.go`."""
        self._ask("POST", "/faults", {"method": method, "kind": kind, "count": 1, **more})

    def heal(self) -> None:
        self._ask("DELETE", "/faults")
        self.away(False)

    def away(self, away: bool) -> None:
        """Answer nobody, or answer again."""
        self._ask("POST", "/away", {"away": away})

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.control}{path}", data, method=method)
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            text = answer.read()
        return json.loads(text) if text else None


@contextmanager
def vcenter(folder: Path, *, cards: int = 1, gigabytes: int = 16) -> Generator[SimulatedVcenter]:
    """Run a vCenter until the block ends; `folder` gets the files of its Secret."""
    program = build.binaries(build.VCSIM, to_stderr) / "vcsim"
    command = [str(program), f"-cards={cards}", f"-gigabytes={gigabytes}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            sdk, control = child.stdout.readline().split()
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in (("server", sdk), ("username", USER), ("password", PASSWORD)):
                (folder / name).write_text(text)
            url = f"http://{control}"
            with urllib.request.urlopen(f"{url}/ca", timeout=_TIMEOUT_S) as answer:
                (folder / "ca.crt").write_bytes(answer.read())
            yield SimulatedVcenter(folder, url)
        finally:
            child.terminate()
            child.wait(_TIMEOUT_S)
