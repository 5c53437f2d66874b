"""A new dialect is one module: everything else is made from its description."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from milligpu.cli.dialect_options import dialect_options
from milligpu.dialects import pod as pods
from milligpu.dialects.choose import KNOWN, read_pod
from milligpu.dialects.dialect import Dialect, DialectForm
from milligpu.dialects.normal import NormalForm, normalize
from milligpu.dialects.registry import DialectRegistry
from milligpu.dialects.settings import DialectSetting, DialectSettings
from milligpu.dialects.table import with_tables
from milligpu.manifests.kube_scheduler import in_default_scheduler
from milligpu.manifests.webhook_configuration import WebhookAddress, webhook_configuration
from milligpu.model.request import PodRequest, ShareRequest
from milligpu.model.units import Milli

PAGE = Path(__file__).parents[2] / "docs" / "dialects.md"
UNIT = DialectSetting("toy-unit", 10, range(1, 101), "Milli-GPU per toy.example/gpu.")


def toy_field(fields: pods.PodFields) -> str | None:
    return fields.devices.get("toy.example/gpu")


def read_toy(pod: pods.Json, settings: DialectSettings) -> PodRequest:
    def share(_: str, wants: Mapping[str, object]) -> ShareRequest | None:
        amount = wants.get("toy.example/gpu")
        return None if amount is None else ShareRequest(1, Milli(int(str(amount)) * UNIT.of(settings)))

    return pods.make_request(pod, "toy", share)


def rewrite_toy(result: dict[str, Any], pod: pods.Json, shares: Mapping[str, ShareRequest]) -> None:
    result["spec"]["nodeSelector"] = {"toy": pods.labels(pod)["toy.example/zone"], "shares": "-".join(shares)}


TOY = Dialect(
    "toy",
    toy_field,
    read_toy,
    source="Toy 1.2",
    forms=(DialectForm("`toy.example/gpu`", "Tens of milli-GPU."),),
    resources=frozenset({"toy.example/gpu"}),
    resource_patterns=(r"toy\.example/",),
    annotation_patterns=(r"toy\.example/note",),
    label_patterns=(r"toy\.example/zone",),
    command_words=("toyrun",),
    schedulers=("toy-scheduler",),
    settings=(UNIT,),
    rewrite=rewrite_toy,
)
WITH_TOY = DialectRegistry((*KNOWN.dialects, TOY))


def toy_pod(amount: int) -> dict[str, Any]:
    main = {"name": "main", "resources": {"limits": {"toy.example/gpu": amount}}}
    metadata = {"name": "p", "labels": {"toy.example/zone": "z"}}
    return {"metadata": metadata, "spec": {"containers": [main], "schedulerName": "toy-scheduler"}}


def test_a_new_dialect_is_read_with_its_settings() -> None:
    assert not read_pod(toy_pod(30)).wants_gpu
    assert read_pod(toy_pod(30), known=WITH_TOY).containers[0].share == ShareRequest(1, Milli(300))
    settings = DialectSettings({"toy-unit": 1})
    assert read_pod(toy_pod(30), settings, WITH_TOY).containers[0].share == ShareRequest(1, Milli(30))


def test_a_new_dialect_is_converted_at_admission() -> None:
    after = normalize(toy_pod(30), NormalForm(scheduler="ours", known=WITH_TOY))
    assert after["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/vgpu": "300"}
    assert after["spec"]["schedulerName"] == "ours"
    assert after["spec"]["nodeSelector"] == {"toy": "z", "shares": "main"}
    assert after["metadata"]["annotations"] == {"milligpu.dev/dialect": "toy"}
    assert normalize(after, NormalForm(scheduler="ours", known=WITH_TOY)) == after


@pytest.mark.parametrize("number", [0, 1], ids=["mutating", "validating"])
def test_the_api_server_sends_pods_of_a_new_dialect_to_the_webhook(number: int) -> None:
    def condition(known: DialectRegistry) -> str:
        webhook = webhook_configuration(WebhookAddress(), known)[number]["webhooks"][0]
        return webhook["matchConditions"][0]["expression"]

    parts = [r"toy\.example/", r"toy\.example/note", r"toy\.example/zone", "w.contains('toyrun')"]
    assert [part for part in parts if part not in condition(WITH_TOY)] == []
    assert [part for part in parts if part in condition(KNOWN)] == []


def test_kube_scheduler_leaves_a_new_dialects_resources_to_the_service() -> None:
    (extender,) = in_default_scheduler("http://s", known=WITH_TOY)["extenders"]
    assert {"name": "toy.example/gpu", "ignoredByScheduler": True} in extender["managedResources"]


def test_commands_have_an_option_for_each_setting() -> None:
    @click.command()
    @dialect_options(WITH_TOY)
    @click.option("--other", default=1)
    def command(settings: DialectSettings, other: int) -> None:
        click.echo(f"{dict(settings.values)} {other}")

    defaults = {"qos-limits": "off", "parts": 10, "gpushare-unit": "auto", "toy-unit": 10}
    assert CliRunner().invoke(command).output == f"{defaults} 1\n"
    assert CliRunner().invoke(command, ["--toy-unit", "7"]).output == f"{defaults | {'toy-unit': 7}} 1\n"
    assert CliRunner().invoke(command, ["--toy-unit", "101"]).exit_code == 2
    assert "Milli-GPU per toy.example/gpu." in CliRunner().invoke(command, ["--help"]).output


def test_the_docs_list_a_new_dialect() -> None:
    page = with_tables(PAGE.read_text(), WITH_TOY)
    added = set(page.splitlines()) - set(PAGE.read_text().splitlines())
    assert added == {
        "| `toy` | `toy.example/gpu` | Tens of milli-GPU. |",
        "| `toy` | Toy 1.2 | `toy-scheduler` |",
        "| `--toy-unit` | from 1 to 100 | `10` | Milli-GPU per toy.example/gpu. |",
    }


def test_the_docs_tables_are_current() -> None:
    assert with_tables(PAGE.read_text(), KNOWN) == PAGE.read_text(), "run: uv run python docs/generate.py"


def test_the_docs_name_every_resource_of_every_dialect() -> None:
    for dialect in KNOWN.dialects:
        written = " ".join(form.written for form in dialect.forms)
        missing = [name for name in dialect.resources if f"{name.split('/')[1]}`" not in written]
        assert missing == [], dialect.name


def test_two_dialects_cannot_have_one_name() -> None:
    with pytest.raises(ValueError, match="toy"):
        DialectRegistry((TOY, TOY))
