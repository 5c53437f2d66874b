"""`milligpu manifests` prints what a cluster of the named version can store."""

import pytest
import yaml

from milligpu.cli.main import run


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[set[str], set[str]]:
    """The kinds that are printed, and the webhooks for new pods."""
    assert run(["manifests", "--no-workloads", *arguments]) == 0
    found = list(yaml.safe_load_all(capsys.readouterr().out))
    (mutating,) = (each for each in found if each["kind"] == "MutatingWebhookConfiguration")
    return {each["kind"] for each in found}, {each["name"].partition(".")[0] for each in mutating["webhooks"]}


@pytest.mark.parametrize("version", ["1.36", "v1.37.1", "2.0"])
def test_a_cluster_that_knows_mutating_policies_gets_them_and_no_webhook_for_pods_without_gpus(
    capsys: pytest.CaptureFixture[str], version: str
) -> None:
    kinds, webhooks = printed(capsys, "--kube-version", version)
    assert kinds >= {"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"}
    assert webhooks == {"gpus", "templates", "users"}


@pytest.mark.parametrize("version", ["1.35", "v1.33.12+k3s1"])
def test_for_an_older_cluster_the_webhook_hides_gpus(capsys: pytest.CaptureFixture[str], version: str) -> None:
    kinds, webhooks = printed(capsys, "--kube-version", version)
    assert "MutatingAdmissionPolicy" not in kinds
    assert webhooks == {"gpus", "others", "debug", "templates", "users"}


def test_a_version_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["manifests", "--kube-version", "newest"]) == 2
    assert "--kube-version: invalid value 'newest': must be a version such as 1.36" in capsys.readouterr().err


def test_the_webhook_is_left_out_or_has_the_given_url(capsys: pytest.CaptureFixture[str]) -> None:
    base = ["manifests", "--no-workloads", "--kube-version", "1.36"]
    assert run([*base, "--no-webhook"]) == 0
    assert "MutatingWebhookConfiguration" not in capsys.readouterr().out
    assert run([*base, "--webhook-url", "https://10.0.0.1:9443"]) == 0
    assert "url: https://10.0.0.1:9443" in capsys.readouterr().out
