"""The program as users run it: a process, its output and its exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from milligpu import __version__
from milligpu.cli.commands import COMMANDS
from milligpu.cli.main import run as run_here

ROOT = Path(__file__).parents[2]
PROGRAM = Path(sys.executable).parent / "milligpu"


def run(*args: str, program: Path = PROGRAM, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *args],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **env},
        timeout=60,
        check=False,
    )


def test_version_prints_the_package_version() -> None:
    assert run("--version").stdout == f"milligpu {__version__}\n"


def test_help_lists_every_command_with_an_example_and_imports_none() -> None:
    code = "import sys; from milligpu.cli.main import run; code = run(['--help'])\n"
    code += "heavy = {'rich', 'numpy', 'yaml', 'msgspec', 'grpc'} & set(sys.modules); sys.exit(f'{code} {heavy}')"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stderr == "0 set()\n"
    for name, entry in COMMANDS.items():
        assert f"  {name} " in result.stdout
        assert entry.example in result.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_commands_help_shows_its_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here([name, "--help"]) == 0
    assert f"Example:\n    {COMMANDS[name].example}" in capsys.readouterr().out


def test_the_help_of_the_kubectl_plugin_says_kubectl_milligpu() -> None:
    result = run("--help", program=PROGRAM.with_name("kubectl-milligpu"))
    assert result.stdout.startswith("Usage: kubectl milligpu ")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_each_shell(shell: str) -> None:
    result = run("completion", shell)
    assert result.returncode == 0
    assert "_MILLIGPU_COMPLETE" in result.stdout


def test_completion_completes_a_command() -> None:
    result = run(_MILLIGPU_COMPLETE="bash_complete", COMP_WORDS="milligpu pla", COMP_CWORD="1")
    assert result.stdout == "plain,place\n"


@pytest.mark.parametrize(
    ("args", "error", "hint"),
    [
        (["plac"], "error: No such command 'plac'. Did you mean 'place'?", "hint: see: milligpu --help"),
        (["--wrong"], "error: no such option: --wrong", "hint: see: milligpu --help"),
        (["place"], "error: Missing option '-f' / '--filename'.", "hint: see: milligpu place --help"),
        (
            ["completion", "tcsh"],
            "error: Invalid value for '{bash|zsh|fish}'",
            "hint: see: milligpu completion --help",
        ),
    ],
)
def test_wrong_usage_is_one_line_a_hint_and_exit_2(args: list[str], error: str, hint: str) -> None:
    result = run(*args)
    assert result.returncode == 2
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines[0].startswith(error)
    assert lines[1:] == [hint]


def test_a_traceback_is_shown_only_with_debug() -> None:
    missing = ("place", "-f", "/nonexistent", "--nodes", "examples/nodes.yaml")
    assert "Traceback" not in run(*missing).stderr
    assert "Traceback" in run("--debug", *missing).stderr
    assert "Traceback" in run(*missing, MILLIGPU_DEBUG="1").stderr


def test_a_closed_pipe_is_no_error() -> None:
    result = subprocess.run(f"{PROGRAM} --help | true", shell=True, capture_output=True, text=True, check=False)
    assert result.stderr == ""


def test_a_bug_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from milligpu.cli import main  # noqa: PLC0415

    def broken(*_args: object, **_options: object) -> None:
        raise ZeroDivisionError("surprise")

    monkeypatch.setattr(main.cli, "main", broken)
    assert main.run(["place"]) == 125
    assert capsys.readouterr().err.splitlines()[0] == "error: ZeroDivisionError: surprise"


PLACE = ("place", "-f", "examples/shares.yaml", "--nodes", "examples/nodes.yaml")


def test_place_shows_where_each_pod_goes_and_why_one_waits() -> None:
    result = run(*PLACE)
    assert (result.returncode, result.stderr) == (0, "")
    rows = {line.split()[0]: line for line in result.stdout.splitlines() if line}
    for pod in ("notebook", "inference", "large-model", "batch", "training"):
        assert pod in rows
    assert "A100" not in rows["batch"]
    assert "0/2 nodes: " in rows["training"]


TWO_PROFILES = """
kind: Node
metadata:
  name: vm
  labels: {milligpu.dev/vgpu.v100-8q: "true", milligpu.dev/vgpu.v100-4q: "true"}
  annotations:
    milligpu.dev/inventory: |
      {"v": 1, "gpus": [
        {"uuid": "GPU-half", "model": "GRID V100-8Q", "mib": 8192, "milli": 500, "cc": "7.0"},
        {"uuid": "GPU-quarter", "model": "GRID V100-4Q", "mib": 4096, "milli": 250, "cc": "7.0"},
        {"uuid": "GPU-card", "model": "Tesla V100-SXM2-16GB", "mib": 16384, "cc": "7.0"}]}
"""
SELECTING = """
kind: Pod
metadata: {{name: {name}}}
spec:
  nodeSelector: {{{selector}}}
  containers: [{{name: main, resources: {{limits: {{nvidia.com/gpu: 1}}}}}}]
"""


def test_a_vgpu_profile_finds_its_gpu_on_a_node_with_two_profiles(tmp_path: Path) -> None:
    nodes, pods = tmp_path / "nodes.yaml", tmp_path / "pods.yaml"
    nodes.write_text(TWO_PROFILES)
    selectors = {"half": "vgpu.type: v100-8g-8GB", "quarter": "virtual.gpu.type: v100-4q", "card": ""}
    selectors["again"] = "vgpu.type: v100-8q"
    pods.write_text("---".join(SELECTING.format(name=name, selector=text) for name, text in selectors.items()))
    answers = json.loads(run("place", "-f", str(pods), "--nodes", str(nodes), "-o", "json").stdout)
    found = {answer["pod"]: answer.get("containers", {}).get("main", [{}])[0].get("gpu") for answer in answers}
    assert found == {"half": "GPU-half", "quarter": "GPU-quarter", "card": "GPU-card", "again": None}


def test_place_prints_json_and_yaml() -> None:
    answers = json.loads(run(*PLACE, "-o", "json").stdout)
    placed = {answer["pod"]: answer for answer in answers}
    assert placed["inference"]["containers"]["server"][0]["mib"] == 4096
    assert placed["large-model"]["node"] == "n2"
    assert placed["training"]["placed"] is False
    assert "- namespace: default\n  pod: notebook\n" in run(*PLACE, "-o", "yaml").stdout


def test_place_overcommits_no_gpu() -> None:
    used: dict[str, int] = {}
    for answer in json.loads(run(*PLACE, "-o", "json").stdout):
        for share in (share for shares in answer.get("containers", {}).values() for share in shares):
            used[share["gpu"]] = used.get(share["gpu"], 0) + (1000 if share.get("whole") else share["milli"])
    assert used
    assert max(used.values()) <= 1000


POD = """
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers: [{name: main, resources: {limits: {LIMITS}}}]
"""


@pytest.mark.parametrize(
    ("stdin", "error"),
    [
        (
            POD.replace("LIMITS", "nvidia.com/vgpu: 30O"),
            "error: - document 1: containers[main].resources.limits[nvidia.com/vgpu]: invalid value '30O': must be",
        ),
        (POD.replace("LIMITS", ""), "error: - document 1: pod default/p requests no GPU"),
        ("kind: Service", "error: - document 1: kind: invalid value 'Service': must be Pod"),
        ("- a\n- b", "error: - document 1: must be a Kubernetes object"),
        ("kind: {", "error: -: not YAML: "),
        ("kind: PodList", "error: - document 1: items: required: a list"),
        ("metadata: {}", "error: - document 1: kind: required: the kind"),
    ],
)
def test_a_bad_manifest_names_where_what_and_what_is_allowed(stdin: str, error: str) -> None:
    result = run("place", "-f", "-", "--nodes", "examples/nodes.yaml", stdin=stdin)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith(error)
    assert len(result.stderr.splitlines()) <= 2


def test_a_bad_inventory_names_the_node_file_and_field() -> None:
    node = 'kind: Node\nmetadata: {name: n, annotations: {milligpu.dev/inventory: \'{"v":1,"gpus":[{}]}\'}}'
    result = run("place", "-f", "examples/shares.yaml", "--nodes", "-", stdin=node)
    assert result.returncode == 2
    assert "inventory: Object missing required field `uuid`" in result.stderr
