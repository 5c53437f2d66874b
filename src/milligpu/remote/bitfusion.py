"""Bitfusion's way of asking for GPUs: `-n` GPUs, `-p` a fraction of each GPU's memory, `-m` megabytes of it.

Bitfusion divided memory only. Here a fraction is one of compute, too, and megabytes bring the same fraction of
compute.
"""

from milligpu.model.errors import BadRequest
from milligpu.model.units import GPUS_MAX, WHOLE, Mib, Milli, parse_fraction, parse_whole
from milligpu.remote.protocol import VERSION, OpenSession

# Bitfusion's megabytes are 10^6 bytes.
_MEGABYTE, _MEBIBYTE = 10**6, 1 << 20
_MEGABYTES_MAX = 10**8


def bitfusion_request(
    token: str, command: tuple[str, ...], count: str | None, fraction: str | None, megabytes: str | None
) -> OpenSession:
    """Read Bitfusion's options; with neither `-p` nor `-m` it is whole GPUs."""
    if count is None:
        raise BadRequest("-n", None, "the number of GPUs, as Bitfusion requires")
    if fraction is not None and megabytes is not None:
        raise BadRequest("-m", megabytes, "left out where -p is given")
    gpus = parse_whole("-n", count, 1, GPUS_MAX)
    milli: Milli | None = None if megabytes is not None else Milli(WHOLE)
    if fraction is not None:
        milli = parse_fraction("-p", fraction)
    mib = None
    if megabytes is not None:
        mib = Mib(-(-parse_whole("-m", megabytes, 1, _MEGABYTES_MAX) * _MEGABYTE // _MEBIBYTE))
    return OpenSession(VERSION, token, list(command), gpus, milli, mib)
