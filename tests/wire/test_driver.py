"""A node's driver: read by today's scheduler, not in the way of 0.1.0's, and unknown where it cannot be read."""

from dataclasses import replace
from pathlib import Path

import pytest

from milligpu.cluster.read import NodeReader
from milligpu.model import names
from milligpu.model.errors import BadFormat
from milligpu.model.gpu import Gpu
from milligpu.model.units import Mib
from milligpu.model.versions import parse_version
from milligpu.wire.driver import decode_driver, encode_driver, gpus_of_node
from milligpu.wire.inventory import encode_inventory
from milligpu.wire.kubernetes import KubeNode, ObjectMeta

GOLDEN = (Path(__file__).parent / "golden/driver-v1.json").read_text().strip()
PLAIN = Gpu("GPU-a", "T4", Mib(16384))
DRIVEN = replace(PLAIN, driver=parse_version("v", "535.54.03"), cuda=parse_version("v", "12.2"))


def test_the_golden_driver_is_read_and_written() -> None:
    assert decode_driver(GOLDEN) == (DRIVEN.driver, DRIVEN.cuda)
    assert encode_driver([DRIVEN, DRIVEN]) == GOLDEN


def test_an_unknown_version_is_left_out() -> None:
    assert encode_driver([replace(DRIVEN, cuda=None)]) == '{"v":1,"driver":"535.54.03"}'
    assert decode_driver('{"v":1,"cuda":"12.2"}') == (None, DRIVEN.cuda)
    assert encode_driver([PLAIN]) is None
    assert encode_driver([]) is None


def test_the_inventory_is_the_same_with_and_without_versions() -> None:
    assert encode_inventory([DRIVEN]) == encode_inventory([PLAIN])


@pytest.mark.parametrize(
    "text", ["", "535", "{}", '{"v":2,"driver":"535"}', '{"v":1,"driver":"new"}', '{"v":1,"nvml":"1"}']
)
def test_a_driver_that_cannot_be_read_is_unknown_and_its_gpus_stay(text: str) -> None:
    with pytest.raises(BadFormat, match="^driver: "):
        decode_driver(text)
    assert gpus_of_node({names.INVENTORY: encode_inventory([PLAIN]), names.DRIVER: text}) == (PLAIN,)


def test_the_scheduler_notices_a_new_driver() -> None:
    reader, inventory = NodeReader(), encode_inventory([PLAIN])

    def read(notes: dict[str, str]) -> tuple[Gpu, ...] | None:
        found = reader.read(KubeNode(ObjectMeta(name="n1", annotations={names.INVENTORY: inventory, **notes})))
        return None if found is None else found.node.gpus

    assert read({}) == (PLAIN,)
    assert read({names.DRIVER: GOLDEN}) == (DRIVEN,)
    assert read({names.DRIVER: GOLDEN}) is None
    newer = replace(DRIVEN, driver=parse_version("v", "550.54.15"))
    assert read({names.DRIVER: encode_driver([newer]) or ""}) == (newer,)
