from typing import Any

from devcluster.services import forwarded


def service(address: str | None, *ports: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"clusterIP": address, "ports": list(ports)}}


def endpoints(service: str, port: dict[str, Any], *hosts: str, ready: bool = True) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "a", "labels": {"kubernetes.io/service-name": service}},
        "ports": [port],
        "endpoints": [{"addresses": [host], "conditions": {"ready": ready}} for host in hosts],
    }


def test_connections_go_to_ready_endpoints_of_the_port_with_the_same_name() -> None:
    services = {
        "a/web": service("10.0.0.7", {"name": "https", "port": 443}, {"name": "metrics", "port": 9400}),
        "b/web": service("10.0.0.8", {"name": "https", "port": 443}),
    }
    slices = {
        "a/web-1": endpoints("web", {"name": "https", "port": 8443}, "10.1.0.2", "10.1.0.3"),
        "a/web-2": endpoints("web", {"name": "https", "port": 8443}, "10.1.0.4", ready=False),
    }
    assert forwarded(services, slices) == {
        ("10.0.0.7", 443): [("10.1.0.2", 8443), ("10.1.0.3", 8443)],
        ("10.0.0.7", 9400): [],
        ("10.0.0.8", 443): [],
    }


def test_headless_services_and_the_api_server_are_left_alone() -> None:
    port = {"port": 443}
    services = {"default/kubernetes": service("10.0.0.1", port), "a/x": service("None", port), "a/y": service(None)}
    assert forwarded(services, {}) == {}
