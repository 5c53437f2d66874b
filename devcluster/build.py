"""Build the programs of a cluster from the Go modules in `go/`, once per version of these modules."""

import os
import re
import shutil
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from devcluster import cache
from devcluster.errors import DevclusterError
from devcluster.report import Report

SOURCES = Path(__file__).parent / "go"
# A person who sees no progress for longer starts to wonder.
PROGRESS_EVERY_S = 20.0


@dataclass(frozen=True)
class Module:
    """One directory below `go/` and the programs built from it."""

    name: str
    programs: tuple[str, ...]
    minutes: int
    """The duration of the first build on two cores, including downloads."""
    target: str = "tool"
    """The argument of `go build`; `tool` stands for the module's tool directives."""
    cgo: bool = False
    """Whether the programs contain C code."""

    @property
    def sources(self) -> Path:
        return SOURCES / self.name


KUBE = Module(
    "kube",
    ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl", "etcd"),
    minutes=8,
    target=".",
)
CONTAINERD = Module("containerd", ("containerd", "containerd-shim-runc-v2", "ctr"), minutes=2)
# One module, so that packages which several of them use are compiled once.
TOOLS = Module("tools", ("kwok", "helm", "kubeconform"), minutes=3)
# Apart from the others, because it needs cgo: packages compiled with and without it are not shared.
NVIDIA = Module("nvidia", ("nvidia-ctk", "nvidia-cdi-hook"), minutes=2, cgo=True)
MODULES = (KUBE, CONTAINERD, TOOLS)


def binaries(module: Module, report: Report) -> Path:
    """Return the directory with the module's programs; build them first if this version is not built yet."""
    flags = _linker_flags(module)
    name = f"{module.name}-{cache.checksum_of_folder(module.sources, flags, os.uname().machine)}"
    return cache.made("bin", name, lambda draft: _build(module, flags, draft, report))


def kubernetes_version() -> str:
    """The Kubernetes version that `go/kube` pins."""
    found = re.search(r"^\s*k8s\.io/kubernetes (v\S+)$", (KUBE.sources / "go.mod").read_text(), re.MULTILINE)
    assert found, "go/kube/go.mod requires k8s.io/kubernetes"
    return found[1]


def _linker_flags(module: Module) -> str:
    if module is KUBE:  # otherwise every component reports v0.0.0
        return f"-s -w -X k8s.io/component-base/version.gitVersion={kubernetes_version()}"
    if module.cgo:  # it looks up functions of a library that is opened later
        return "-s -w -extldflags=-Wl,-z,lazy"
    return "-s -w"


def _build(module: Module, flags: str, draft: Path, report: Report) -> None:
    go = shutil.which("go")
    if go is None:
        raise DevclusterError(
            "go is not installed, and the cluster's programs are not built yet", "install Go 1.26"
        )
    report(f"building {', '.join(module.programs)}: once, about {module.minutes} minutes on two cores")
    started = time.monotonic()
    command = [go, "build", "-v", "-trimpath", f"-ldflags={flags}", f"-o={draft}/", module.target]
    _run_with_progress(module, command, report)
    if module is KUBE:
        for program in module.programs:
            (draft / program).symlink_to("kube")
    missing = [program for program in module.programs if not (draft / program).exists()]
    if missing:
        raise DevclusterError(f"go build in {module.sources} did not build {', '.join(missing)}")
    report(f"built {module.name} in {_duration(time.monotonic() - started)}")


def _run_with_progress(module: Module, command: list[str], report: Report) -> None:
    """Run `go build`, which prints each package on stderr, and report the progress now and then."""
    started = time.monotonic()
    environment = {**os.environ, "CGO_ENABLED": "01"[module.cgo], "GOFLAGS": "-mod=readonly -buildvcs=false"}
    if module.cgo:  # NVIDIA's binding also calls what NVML no longer recommends
        environment["CGO_CFLAGS"] = "-O1 -Wno-deprecated-declarations"
    with subprocess.Popen(command, cwd=module.sources, env=environment, stderr=subprocess.PIPE, text=True) as child:
        said = _Listener(child.stderr or ())
        try:
            while (code := _wait(child, PROGRESS_EVERY_S)) is None:
                elapsed = _duration(time.monotonic() - started)
                report(f"  {module.name}: {elapsed}, {said.count} packages, now at {said.last}")
        except BaseException:
            child.kill()
            raise
        said.join()
    if code != 0:
        raise DevclusterError(f"go build failed in {module.sources}:\n" + "\n".join(said.lines))


class _Listener(threading.Thread):
    """Reads a program's output as it comes, so that the program never blocks; keeps the last lines."""

    def __init__(self, stream: Iterable[str]) -> None:
        super().__init__(daemon=True)
        self.lines: deque[str] = deque(maxlen=30)
        self.count = 0
        self._stream = stream
        self.start()

    def run(self) -> None:
        for line in self._stream:
            self.lines.append(line.rstrip())
            self.count += 1

    @property
    def last(self) -> str:
        return self.lines[-1] if self.lines else "the start"


def _wait(child: "subprocess.Popen[str]", seconds: float) -> int | None:
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def _duration(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d} min"
