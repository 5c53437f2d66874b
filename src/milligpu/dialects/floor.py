"""The annotation `milligpu.dev/floor`, next to a request in any dialect: how far others may shrink the share."""

from dataclasses import replace

from milligpu.dialects import pod as pods
from milligpu.model import names
from milligpu.model.errors import BadRequest
from milligpu.model.request import PodRequest
from milligpu.model.units import WHOLE, Milli, milli_hint, parse_whole


def apply_floor(pod: pods.Json, request: PodRequest) -> PodRequest:
    """Return the request with the floor that its pod names. Raises `BadRequest` if a share is not above it."""
    floor = pods.optional(pods.annotations(pod), names.FLOOR, _parse)
    if floor is None:
        return request
    shares = {each.name: each.share for each in request.containers if each.share is not None}
    if not shares:
        raise BadRequest(names.FLOOR, floor, "left out: the pod requests no GPU")
    if request.remote:
        raise BadRequest(names.FLOOR, floor, "left out: a share on a GPU server cannot be shrunk")
    for name, share in shares.items():
        if share.whole:
            raise BadRequest(names.FLOOR, floor, f"left out: container {name} requests whole GPUs")
        if share.milli is not None and floor > share.milli:
            want = f"at most {share.milli}, the share of container {name}"
            raise BadRequest(names.FLOOR, floor, want)
    return replace(request, floor=floor)


def _parse(field: str, value: object) -> Milli:
    try:
        return Milli(parse_whole(field, value, 1, WHOLE))
    except BadRequest as error:
        raise BadRequest(field, value, error.want, hint=milli_hint(value)) from None
