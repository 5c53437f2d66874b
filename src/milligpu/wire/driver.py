"""The versions of a node's driver and of CUDA, as a node annotation: `milligpu.dev/driver`.

They are no part of the inventory, because 0.1.0 refuses an inventory with a field that it does not know.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from milligpu.model import names
from milligpu.model.errors import BadFormat, BadRequest
from milligpu.model.gpu import Gpu
from milligpu.model.versions import DottedVersion, parse_version
from milligpu.wire.documents import Document, DocumentFormat, encode
from milligpu.wire.inventory import decode_inventory

DRIVER = DocumentFormat("driver")


class _Driver(Document, frozen=True):
    driver: str = ""
    cuda: str = ""


def encode_driver(gpus: Iterable[Gpu]) -> str | None:
    """Write the annotation's value; None where no version is known. All GPUs of a node have the same driver."""
    first = next(iter(gpus), None)
    if first is None or first.driver is first.cuda is None:
        return None
    return encode(_Driver(v=DRIVER.version, driver=str(first.driver or ""), cuda=str(first.cuda or "")))


def decode_driver(text: str | bytes) -> tuple[DottedVersion | None, DottedVersion | None]:
    """Read the annotation's value: the driver's version and that of CUDA."""
    raw = DRIVER.decode(text, _Driver)
    try:
        driver = parse_version("driver", raw.driver) if raw.driver else None
        return driver, parse_version("cuda", raw.cuda) if raw.cuda else None
    except BadRequest as error:
        raise DRIVER.refuse(error) from None


def gpus_of_node(annotations: Mapping[str, str] | None) -> tuple[Gpu, ...]:
    """Read a node's GPUs with its driver's versions.

    Raises `BadFormat` for an inventory that cannot be read. Versions that cannot be read are unknown:
    no pod relies on them.
    """
    found = annotations or {}
    gpus = decode_inventory(found[names.INVENTORY]) if names.INVENTORY in found else ()
    if names.DRIVER not in found:
        return gpus
    try:
        driver, cuda = decode_driver(found[names.DRIVER])
    except BadFormat:
        return gpus
    return tuple(replace(gpu, driver=driver, cuda=cuda) for gpu in gpus)
