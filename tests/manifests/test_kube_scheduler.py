"""kube-scheduler's configuration."""

import pytest

from milligpu.manifests.kube_scheduler import TlsClientFiles, in_default_scheduler, second_scheduler


@pytest.mark.parametrize("configuration", [in_default_scheduler("http://s"), second_scheduler("http://s", "x")])
def test_kube_scheduler_never_binds_a_gpu_pod_itself(configuration: dict[str, list[dict[str, object]]]) -> None:
    (extender,) = configuration["extenders"]
    assert (extender["ignorable"], extender["bindVerb"], extender["nodeCacheCapable"]) == (False, "bind", True)
    assert "enableHTTPS" not in extender


def test_an_https_url_adds_the_tls_files() -> None:
    (extender,) = second_scheduler("https://s", "x", TlsClientFiles("ca", "crt", "key"))["extenders"]
    assert extender["enableHTTPS"] is True
    assert extender["tlsConfig"] == {"caFile": "ca", "certFile": "crt", "keyFile": "key"}
    (extender,) = in_default_scheduler("https://s", TlsClientFiles("ca"))["extenders"]
    assert extender["tlsConfig"] == {"caFile": "ca"}
