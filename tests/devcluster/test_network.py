import socket
from ipaddress import IPv4Address, IPv4Network
from itertools import combinations

import pytest

from devcluster.errors import DevclusterError
from devcluster.network import CLUSTERS_MAX, FIRST_PORT, NODES_MAX, AddressPlan, free_port


def test_no_two_clusters_share_an_address() -> None:
    plans = [AddressPlan(number) for number in range(CLUSTERS_MAX)]
    networks = [IPv4Network(each) for plan in plans for each in plan.ranges]

    assert not any(one.overlaps(other) for one, other in combinations(networks, 2))


def test_no_two_nodes_of_a_cluster_share_a_pod_address() -> None:
    plan = AddressPlan(3)
    pods = [IPv4Network(plan.pods(ordinal)) for ordinal in range(NODES_MAX + 1)]

    assert not any(one.overlaps(other) for one, other in combinations(pods, 2))
    assert all(each.subnet_of(IPv4Network(plan.pod_range)) for each in pods)


def test_every_node_address_is_in_the_clusters_range_and_none_is_the_unused_one() -> None:
    plan = AddressPlan(CLUSTERS_MAX - 1)
    nodes = {plan.node(ordinal) for ordinal in range(1, NODES_MAX + 1)}

    assert len(nodes) == NODES_MAX
    assert all(IPv4Address(node) in IPv4Network(plan.node_range) for node in nodes)
    assert plan.unused not in nodes


@pytest.mark.parametrize("ordinal", [0, NODES_MAX + 1])
def test_a_node_outside_the_plan_is_refused(ordinal: int) -> None:
    with pytest.raises(DevclusterError, match="at most 15"):
        AddressPlan(0).node(ordinal)


def test_a_port_with_a_listener_is_not_free() -> None:
    number = CLUSTERS_MAX + 50  # no cluster has this number, so its ports are free
    first = free_port(number, set())
    with socket.socket() as server:
        server.bind(("127.0.0.1", first))
        server.listen()

        assert free_port(number, set()) == first + 1
        assert free_port(number, {first + 1}) == first + 2
    assert first >= FIRST_PORT
