"""Each extra of the package installs all that its modules import, and a command without its extra names it."""

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from milligpu.cli.extras import modules_by_extra

# Only packages of the extra can be imported, as on a machine where nothing else is installed.
ALONE = """
import importlib, importlib.metadata as metadata, re, sys
extra, module = sys.argv[1:]
wanted, todo = set(), [("milligpu", extra)]
while todo:
    name, of = todo.pop()
    name = re.sub(r"[-_.]+", "-", name).lower()
    if (name, of) in wanted: continue
    wanted.add((name, of))
    try: lines = metadata.requires(name) or []
    except metadata.PackageNotFoundError: continue  # for other platforms
    for line in lines:
        requirement, _, marker = line.partition(";")
        asked = re.search(r'extra == .(\\w+)', marker)
        if asked and asked[1] != of: continue
        found, extras = re.match(r"([\\w.-]+)(?:\\[(.*?)\\])?", requirement.strip()).groups()
        todo += [(found, each) for each in ["", *(extras or "").split(",")]]
brought = {name for name, _ in wanted}
owners = metadata.packages_distributions()
class Gate:
    def find_spec(self, name, path=None, target=None):
        whose = {re.sub(r"[-_.]+", "-", each).lower() for each in owners.get(name.partition(".")[0], [])}
        if whose and not whose & brought: raise ModuleNotFoundError(f"{name} is not brought by milligpu[{extra}]")
sys.meta_path.insert(0, Gate())
importlib.import_module(module)
"""


@pytest.mark.parametrize(
    ("extra", "module"),
    [
        ("", "milligpu.status.cluster"),
        ("", "milligpu.cli.tables"),
        ("", "milligpu.kube.fetch"),
        ("node", "milligpu.agent.lifecycle"),
        ("node", "milligpu.agent.session_service"),
        ("node", "milligpu.checks.doctor"),
        ("scheduler", "milligpu.scheduler.service"),
        ("scheduler", "milligpu.webhook.service"),
        ("softgpu", "milligpu.softgpu.daemon"),
    ],
)
def test_a_module_imports_with_its_extra_alone(extra: str, module: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", ALONE, extra, module], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr[-600:]


def test_a_missing_dependency_is_detected() -> None:
    run = subprocess.run(
        [sys.executable, "-c", ALONE, "", "milligpu.agent.lifecycle"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "is not brought by milligpu[]" in run.stderr


# Put before every program's imports by Python itself, so that a service that a command starts is without it, too.
WITHOUT = """
import importlib.metadata as metadata, os, re, sys
gone = set(os.environ["WITHOUT_MODULES"].split(","))
class Gate:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in gone:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Gate())
"""
EXTRAS = ("dashboard", "node", "plot", "scheduler", "server", "softgpu", "vsphere")


def without(extra: str, folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """`milligpu ARGS` where an extra is not installed, nor what it brings together with others."""
    (folder / "sitecustomize.py").write_text(WITHOUT)
    env = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "WITHOUT_MODULES": ",".join(modules_by_extra()[extra]),
        "XDG_RUNTIME_DIR": str(folder),
    }
    command = [str(Path(sys.executable).parent / "milligpu"), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env, cwd=folder)


@pytest.mark.parametrize(
    ("extra", "args"),
    [
        ("dashboard", ["dashboard", "--machine"]),
        ("node", ["agent"]),
        ("node", ["doctor"]),
        ("node", ["gpu", "list"]),
        ("node", ["run", "true"]),
        ("scheduler", ["scheduler", "serve"]),
        ("vsphere", ["scheduler", "serve", "--vsphere", "."]),
        ("server", ["server"]),
        ("server", ["pool", "create"]),
        ("softgpu", ["softgpu", "up"]),
        ("softgpu", ["softgpu", "exec", "true"]),
        ("softgpu", ["run", "true"]),
        ("plot", ["simulate", "--generate", "6", "--strategy", "random", "--plot", "x.png"]),
    ],
)
def test_a_command_without_its_extra_names_the_extra(extra: str, args: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="mg-", ignore_cleanup_errors=True) as folder:  # short, for sockets
        done = without(extra, Path(folder), *args)
        if "true" in args:  # a GPU that it may have started for this command
            program = [str(Path(sys.executable).parent / "milligpu"), "softgpu", "down"]
            env = {**os.environ, "XDG_RUNTIME_DIR": folder}
            subprocess.run(program, capture_output=True, check=False, env=env)
    assert done.returncode == 125, done
    assert f"hint: pip install 'milligpu[{extra}]'" in done.stderr, done.stderr
    assert "bug" not in done.stderr


def test_every_extra_is_tried_and_its_modules_exist() -> None:
    assert sorted(modules_by_extra()) == sorted(EXTRAS)
    for modules in modules_by_extra().values():
        for module in modules:
            assert importlib.util.find_spec(module) is not None, module
