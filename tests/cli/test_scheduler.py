"""`milligpu scheduler manifests`: what its options change in the objects of a cluster."""

from typing import Any

import pytest
import yaml

from milligpu.cli.main import run

Capture = pytest.CaptureFixture[str]
WEBHOOKS = {"MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"}


def manifests(capsys: Capture, *options: str) -> list[dict[str, Any]]:
    assert run(["scheduler", "manifests", *options]) == 0
    return list(yaml.safe_load_all(capsys.readouterr().out))


def test_the_webhook_can_be_left_out(capsys: Capture) -> None:
    kinds = {each["kind"] for each in manifests(capsys, "--webhook")}
    assert kinds - {each["kind"] for each in manifests(capsys, "--no-webhook")} >= WEBHOOKS


def test_the_webhook_is_called_by_its_url(capsys: Capture) -> None:
    found = [each for each in manifests(capsys, "--webhook-url", "https://h:1") if each["kind"] in WEBHOOKS]
    urls = {hook["clientConfig"].get("url", "")[:11] for each in found for hook in each["webhooks"]}
    assert urls == {"https://h:1"}


def test_all_objects_are_in_the_namespace_but_the_right_to_read_leases_of_nodes(capsys: Capture) -> None:
    found = manifests(capsys, "--namespace", "gpus")
    elsewhere = [each for each in found if each["metadata"].get("namespace", "gpus") != "gpus"]
    assert {each["metadata"]["namespace"] for each in elsewhere} == {"kube-node-lease"}
    assert {each["kind"] for each in elsewhere} == {"Role", "RoleBinding"}
    accounts = [subject for each in found for subject in each.get("subjects", ())]
    assert {subject["namespace"] for subject in accounts if subject["kind"] == "ServiceAccount"} == {"gpus"}
