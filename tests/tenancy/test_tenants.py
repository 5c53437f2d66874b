"""All tenants of a machine: what is measured of them, and that nothing stays of one that is gone."""

import gc
from pathlib import Path

from milligpu.tenancy.arbiter import Arbiter
from milligpu.tenancy.tenants import Tenants
from tests.tenancy.test_tenant import make, page


def mentions(root: object, text: str) -> list[object]:
    """The objects that can be reached from `root` and hold this text."""
    found, seen, todo = list[object](), set[int](), [root]
    while todo:
        each = todo.pop()
        if id(each) in seen or isinstance(each, type):
            continue
        seen.add(id(each))
        if isinstance(each, str | bytes | Path) and text in str(each):
            found.append(each)
        if not isinstance(each, str | bytes | int | float) and not callable(each):
            todo += gc.get_referents(each)
    return found


def test_nothing_of_a_removed_tenant_stays(tmp_path: Path) -> None:
    arbiter = Arbiter()
    tenants = Tenants(arbiter)
    try:
        for name in ("stays", "leaves"):
            (tmp_path / name).mkdir()
            tenants.add(name, make(tmp_path / name), page(400))
        for now in (1.0, 2.0):
            tenants.sample(now)
        assert tenants.uses("leaves")[0].utilization == 0.0
        assert mentions(tenants, "leaves")

        tenants.remove("leaves")
        tenants.sample(3.0)

        assert tenants.uses("leaves") == ()
        assert mentions(tenants, "leaves") == []
        assert tenants.uses("stays")[0].utilization == 0.0
    finally:
        arbiter.close()
