"""Statuses as plain data for `-o json` and `-o yaml`: every field is there, unknown ones as null."""

from typing import cast

import msgspec

from milligpu.wire.status import ShareUsage


def plain(value: object) -> object:
    """Turn a status into dictionaries and lists."""
    if isinstance(value, ShareUsage):
        return _share(value)
    if isinstance(value, msgspec.Struct):
        return {field: plain(getattr(value, field)) for field in value.__struct_fields__ if field != "v"}
    return [plain(each) for each in cast("list[object]", value)] if isinstance(value, list) else value


def _share(use: ShareUsage) -> dict[str, object]:
    found: dict[str, object] = {"gpu": use.gpu, "model": use.accelerator.model}
    found |= {"memory_limit": use.memory_limit, "memory_used": use.memory_used}
    return found | {field: getattr(use, field) for field in use.__struct_fields__ if field != "accelerator"}
