"""`milligpu translate` as users run it."""

import json
from pathlib import Path
from typing import Any

import pytest

from milligpu.cli.main import run

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "dialects"

Capture = pytest.CaptureFixture[str]


def translate(capsys: Capture, *args: str) -> tuple[int, Any, str]:
    code = run(["translate", "-o", "json", *args])
    output = capsys.readouterr()
    return code, json.loads(output.out) if output.out else None, output.err


def write(folder: Path, text: str) -> str:
    path = folder / "m.yaml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_each_example_is_read_in_its_dialect(path: Path, capsys: Capture) -> None:
    code, found, errors = translate(capsys, "-f", str(path))
    assert (code, errors) == (0, "")
    dialect = "native" if path.stem == "profiles" else path.stem
    assert {each["dialect"] for each in found} == {dialect}
    assert all(each["containers"] for each in found)


def test_the_table_shows_shares_and_refusals(tmp_path: Path, capsys: Capture) -> None:
    bad = KINDS["Pod"].replace("300", "30O").replace("name: n", "name: bad")
    assert run(["translate", "-f", str(EXAMPLES / "hami.yaml"), "-f", write(tmp_path, bad)]) == 2
    output = capsys.readouterr()
    rows = [line.split() for line in output.out.splitlines() if line]
    assert rows[0] == ["MANIFEST", "DIALECT", "CONTAINER", "GPUS", "SHARE", "MEMORY", "LIMIT", "CONDITIONS"]
    assert rows[1] == ["pod/hami", "hami", "main", "2", "0.3", "3000Mi", "0.3"]
    assert rows[2][:7] == ["pod/hami-percentage", "hami", "main", "1", "by", "memory", "50%"]
    assert rows[3] == ["REFUSED", "MANIFEST", "REASON"]
    assert "pod/bad" in rows[4]
    assert "resources.limits[nvidia.com/vgpu]: invalid value '30O': must be from 1 to 1000" in output.out
    assert output.err == "error: 1 of 3 manifests refused\n"


SPEC = "{containers: [{name: c, resources: {limits: {nvidia.com/vgpu: 300}}}]}"
KINDS = {
    "Pod": f"kind: Pod\nmetadata: {{name: n}}\nspec: {SPEC}",
    "CronJob": "kind: CronJob\nmetadata: {name: n}\n"
    f"spec: {{jobTemplate: {{spec: {{template: {{spec: {SPEC}}}}}}}}}",
    **{
        kind: f"kind: {kind}\nmetadata: {{name: n}}\nspec: {{template: {{spec: {SPEC}}}}}"
        for kind in ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "ReplicationController")
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_pod_templates_are_found_in_all_kinds(kind: str, tmp_path: Path, capsys: Capture) -> None:
    code, found, _ = translate(capsys, "-f", write(tmp_path, KINDS[kind]))
    assert code == 0
    assert [(each["kind"], each["name"], each["containers"]) for each in found] == [
        (kind, "n", {"c": {"gpus": 1, "milli": 300}})
    ]


def test_lists_are_opened_and_other_kinds_skipped_with_a_note(tmp_path: Path, capsys: Capture) -> None:
    inner = json.dumps({"kind": "Pod", "metadata": {"name": "inside"}, "spec": {"containers": [{"name": "c"}]}})
    text = f'{KINDS["Job"]}\n---\nkind: Service\nmetadata: {{name: s}}\n---\n{{"kind": "List", "items": [{inner}]}}'
    code, found, errors = translate(capsys, "-f", write(tmp_path, text))
    assert code == 0
    assert [each["name"] for each in found] == ["n", "inside"]
    assert "document 2: Service has no pods that milligpu reads" in errors


def test_a_refusal_keeps_its_fields_and_the_others_are_still_shown(tmp_path: Path, capsys: Capture) -> None:
    bad = KINDS["Deployment"].replace("300", "1500")
    code, found, _ = translate(capsys, "-f", write(tmp_path, f"{bad}\n---\n{KINDS['Pod']}"))
    assert code == 2
    assert found[0]["refused"]["field"] == "containers[c].resources.limits[nvidia.com/vgpu]"
    assert found[0]["refused"]["value"] == 1500
    assert found[0]["refused"]["hint"] == "ask for 1000 or 2000"
    assert found[1]["containers"] == {"c": {"gpus": 1, "milli": 300}}


def test_a_number_where_kubernetes_wants_text_is_read_with_a_note(tmp_path: Path, capsys: Capture) -> None:
    text = "kind: Pod\nmetadata: {name: n, annotations: {gpu-fraction: 0.5}}\nspec: {containers: [{name: c}]}"
    code, found, errors = translate(capsys, "-f", write(tmp_path, text))
    assert code == 0
    assert found[0]["containers"]["c"]["milli"] == 500
    assert "metadata.annotations[gpu-fraction]: Kubernetes requires quotes around 0.5" in errors


@pytest.mark.parametrize(
    "broken", ["kind: Deployment", "kind: Job\nspec: {template: []}", "kind: Pod\nmetadata: 7"]
)
def test_a_broken_manifest_is_refused_not_a_crash(broken: str, tmp_path: Path, capsys: Capture) -> None:
    code, found, _ = translate(capsys, "-f", write(tmp_path, broken))
    assert code == 2
    assert found[0]["refused"]["want"]


@pytest.mark.parametrize(("value", "limit"), [("off", None), ("on", 1000)])
def test_the_qos_class_decides_where_an_option_says_so(
    value: str, limit: int | None, tmp_path: Path, capsys: Capture
) -> None:
    found = translate(capsys, "--qos-limits", value, "-f", write(tmp_path, KINDS["Pod"]))[1]
    share = found[0]["containers"]["c"]
    assert (share.get("milli"), share.get("limit")) == (300 if limit is None else 0, limit)


def test_options_carry_the_configuration_of_the_other_system(tmp_path: Path, capsys: Capture) -> None:
    text = KINDS["Pod"].replace("nvidia.com/vgpu: 300", "deepomatic.com/shared-gpu: 1")
    assert translate(capsys, "--parts", "4", "-f", write(tmp_path, text))[1][0]["containers"]["c"]["milli"] == 250
    text = KINDS["Pod"].replace("nvidia.com/vgpu", "aliyun.com/gpu-mem")
    assert (
        translate(capsys, "--gpushare-unit", "MiB", "-f", write(tmp_path, text))[1][0]["containers"]["c"]["mib"]
        == 300
    )
