"""Building the programs of a cluster from the Go modules in `go/`, once per version of these modules."""

import os
import re
import shutil
import subprocess
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from devcluster import cache
from devcluster.errors import DevclusterError
from devcluster.report import Report

SOURCES = Path(__file__).parent / "go"
# A person who sees nothing for longer starts to wonder.
PROGRESS_EVERY_S = 20.0


@dataclass(frozen=True)
class Module:
    """One folder below `go/` and the programs that come out of it."""

    name: str
    programs: tuple[str, ...]
    minutes: int
    """What the first build takes on two cores, downloads included."""
    target: str = "tool"
    """What `go build` is asked for; `tool` stands for the module's tool directives."""

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
KWOK = Module("kwok", ("kwok",), minutes=2)
MODULES = (KUBE, CONTAINERD, KWOK)


def binaries(module: Module, report: Report) -> Path:
    """The folder with the module's programs, built now if this version of it never was."""
    flags = _linker_flags(module)
    name = f"{module.name}-{cache.checksum_of_folder(module.sources, flags, os.uname().machine)}"
    return cache.made("bin", name, lambda draft: _build(module, flags, draft, report))


def kubernetes_version() -> str:
    """The version that `go/kube` pins."""
    found = re.search(r"^\s*k8s\.io/kubernetes (v\S+)$", (KUBE.sources / "go.mod").read_text(), re.MULTILINE)
    assert found, "go/kube/go.mod requires k8s.io/kubernetes"
    return found[1]


def _linker_flags(module: Module) -> str:
    if module is KUBE:  # else every component says it is v0.0.0
        return f"-s -w -X k8s.io/component-base/version.gitVersion={kubernetes_version()}"
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
        raise DevclusterError(f"go build in {module.sources} made no {', '.join(missing)}")
    report(f"built {module.name} in {_duration(time.monotonic() - started)}")


def _run_with_progress(module: Module, command: list[str], report: Report) -> None:
    """Run `go build`, which names each package on stderr, and tell now and then how far it is."""
    started = time.monotonic()
    child = subprocess.Popen(
        command,
        cwd=module.sources,
        env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stderr is not None
    lines: deque[str] = deque(maxlen=30)
    count = 0

    def read(stream: "subprocess.Popen[str]") -> None:
        nonlocal count
        for line in stream.stderr or ():
            lines.append(line.rstrip())
            count += 1

    reader = threading.Thread(target=read, args=(child,), daemon=True)
    reader.start()
    try:
        while True:
            try:
                code = child.wait(PROGRESS_EVERY_S)
                break
            except subprocess.TimeoutExpired:
                last = lines[-1] if lines else "starting"
                elapsed = _duration(time.monotonic() - started)
                report(f"  {module.name}: {elapsed}, {count} packages, now at {last}")
    except BaseException:
        child.kill()
        child.wait()
        raise
    reader.join()
    if code != 0:
        raise DevclusterError(f"go build failed in {module.sources}:\n" + "\n".join(lines))


def _duration(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d} min"
