"""Deepomatic's plugin: `deepomatic.com/shared-gpu: 1` is one of N equal parts of a card, with no limit on it."""

from collections.abc import Mapping

from milligpu.dialects import pod as pods
from milligpu.dialects.parts import part_of_card
from milligpu.dialects.settings import DEFAULTS, Settings
from milligpu.model.errors import BadRequest
from milligpu.model.request import PodRequest, ShareRequest

PREFIX = "deepomatic.com/"
SHARED = PREFIX + "shared-gpu"
RESOURCES = frozenset({SHARED})


def speaks(words: pods.Words) -> str | None:
    """The first field in this dialect."""
    return next((field for key, field in words.devices.items() if key.startswith(PREFIX)), None)


def read(pod: pods.Json, settings: Settings = DEFAULTS) -> PodRequest:
    """Parts of one card."""

    def share(name: str, wants: Mapping[str, object]) -> ShareRequest | None:
        for key, value in wants.items():
            if key.startswith(PREFIX) and key != SHARED:
                raise BadRequest(pods.field(name, key), value, SHARED)
        return part_of_card(pods.field(name, SHARED), wants.get(SHARED, 0), settings.parts)

    return pods.request(pod, "deepomatic", share)
