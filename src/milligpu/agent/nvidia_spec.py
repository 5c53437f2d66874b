"""Finds NVIDIA's CDI specification on the node: an existing file, else what `nvidia-ctk` generates, else none."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from milligpu.agent.host_paths import HostPaths
from milligpu.agent.nvidia_cdi import NvidiaSpec, decode_spec, missing_files, missing_programs
from milligpu.model.errors import BadFormat

FOLDERS = (Path("/var/run/cdi"), Path("/etc/cdi"))
"""Where runtimes look for CDI files: what is generated at boot comes before what was configured."""
_SUFFIXES = {".json": True, ".yaml": False, ".yml": False}
# As packages and the GPU Operator install them.
_PROGRAM_FOLDERS = ("/usr/bin", "/usr/local/bin", "/usr/local/nvidia/toolkit", "/usr/sbin", "/usr/local/sbin")
_CTK, _HOOK = "nvidia-ctk", "nvidia-cdi-hook"
# It takes a second; a driver that wakes its GPUs up takes several.
_GENERATE_S = 60.0
# How soon nvidia-ctk is run again if what it generated did not help.
_AGAIN_S = 30.0
# Runs a program of the node from a container that has the node's root directory.
_IN_ROOT = "import os, sys; os.chroot(sys.argv[1]); os.chdir('/'); os.execv(sys.argv[2], sys.argv[2:])"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Candidate:
    source: str
    spec: NvidiaSpec


class NvidiaSpecs:
    """The specification that containers are attached by. `refresh` before each use: drivers and files come late."""

    def __init__(
        self,
        host: HostPaths,
        folders: tuple[Path, ...] = FOLDERS,
        programs: tuple[str, ...] = _PROGRAM_FOLDERS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host = host
        self._folders = folders
        self._programs = programs
        self._now = now
        self._read: dict[Path, tuple[tuple[int, int], NvidiaSpec | None]] = {}
        self._generated: NvidiaSpec | None = None
        self._again = -_AGAIN_S
        self._said = ""
        self.spec: NvidiaSpec | None = None
        """None if the node has no toolkit: then the agent uses what it finds itself."""

    def refresh(self, nodes: Mapping[str, str]) -> str:
        """Choose a specification for these GPUs (device nodes by UUID); return why none can be used now, or "".

        Without any, containers get the driver's libraries as the agent finds them.
        """
        problem = ""
        for candidate in self._candidates(nodes):
            found = self._problem(candidate)
            if not found:
                self._use(candidate)
                return ""
            problem = problem or found
        if not problem:
            self._use(None)
        return problem

    def _use(self, candidate: _Candidate | None) -> None:
        self.spec = candidate.spec if candidate else None
        source = candidate.source if candidate else "none"
        if source == self._said:
            return
        self._said = source
        if candidate:
            log.info("Using NVIDIA's CDI specification", source=source)
        else:
            hint = "install NVIDIA's container toolkit"
            log.warning(
                "Found no CDI specification of NVIDIA, using the libraries in the loader's cache", hint=hint
            )

    def _problem(self, candidate: _Candidate) -> str:
        missing = missing_programs(candidate.spec, self._host.exists)
        return f"{candidate.source} needs {missing[0]}, which this node does not have" if missing else ""

    def _candidates(self, nodes: Mapping[str, str]) -> Iterator[_Candidate]:
        for path in self._files():
            spec = self._decoded(path)
            if spec is None:
                continue
            stale = missing_files(spec, self._host.exists)
            if stale:
                log.debug("Skipped a CDI specification of another driver", file=str(path), missing=stale[0])
            elif spec.edits_of(nodes) is None:
                log.debug("Skipped a CDI specification without one of the GPUs", file=str(path))
            else:
                yield _Candidate(str(path), spec)
        generated = self._generate_if_needed(nodes)
        if generated is not None:
            yield _Candidate(f"the specification of {_CTK}", generated)

    def _files(self) -> Iterator[Path]:
        for folder in self._folders:
            try:
                yield from sorted(each for each in self._host.here(folder).iterdir() if each.suffix in _SUFFIXES)
            except OSError:
                continue

    def _decoded(self, path: Path) -> NvidiaSpec | None:
        """Read a file, once for each time it is written."""
        try:
            stat = path.stat()
            version = stat.st_mtime_ns, stat.st_size
            if path not in self._read or self._read[path][0] != version:
                self._read[path] = version, _decode(path)
            return self._read[path][1]
        except OSError:  # a link to a container's file that was just deleted
            return None

    def _generate_if_needed(self, nodes: Mapping[str, str]) -> NvidiaSpec | None:
        known = self._generated
        if known is not None and known.edits_of(nodes) and not missing_files(known, self._host.exists):
            return known
        if self._now() - self._again >= _AGAIN_S:
            self._again = self._now()
            self._generated = self._generate()
        found = self._generated
        return found if found is not None and found.edits_of(nodes) else None

    def _generate(self) -> NvidiaSpec | None:
        program = self._program(_CTK)
        if program is None:
            return None
        driver = self._host.driver
        dev = driver if self._host.exists(driver / "dev/nvidiactl") else Path("/")
        command = [program, "cdi", "generate", "--format=json", "--mode=nvml", "--device-name-strategy=uuid"]
        command += [f"--driver-root={driver}", f"--dev-root={dev}"]
        hook = self._program(_HOOK)
        if hook is not None:
            command.append(f"--nvidia-cdi-hook-path={hook}")
        if self._host.root != Path("/"):
            command = [sys.executable, "-c", _IN_ROOT, str(self._host.root), *command]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_GENERATE_S, check=True)
            return decode_spec(done.stdout, is_json=True)
        except (OSError, subprocess.SubprocessError, BadFormat) as error:
            said = getattr(error, "stderr", None) or str(error).encode()
            log.warning("Could not generate a CDI specification", program=program, error=said.decode()[-500:])
            return None

    def _program(self, name: str) -> str | None:
        """Return the node's path of a program."""
        return next((f"{each}/{name}" for each in self._programs if self._host.exists(f"{each}/{name}")), None)


def _decode(path: Path) -> NvidiaSpec | None:
    try:
        return decode_spec(path.read_bytes(), is_json=_SUFFIXES[path.suffix])
    except BadFormat as error:
        log.warning("Could not read a CDI file", file=str(path), error=error.message)
        return None
