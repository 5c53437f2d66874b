"""Invalid calls return the driver's error, and the process continues."""

import re
from collections.abc import Callable
from typing import Any

import pytest

EXPECTED = {
    "before cuInit": "NOT_INITIALIZED",
    "memory of size 0": "INVALID_VALUE",
    "memory of size 2^63": "OUT_OF_MEMORY",
    "more than there is": "OUT_OF_MEMORY",
    "copy past the end": "INVALID_VALUE",
    "copy to null": "INVALID_VALUE",
    "copy to the host's memory": "INVALID_VALUE",
    "fill past the end": "INVALID_VALUE",
    "double free": "INVALID_VALUE",
    "free of null": "SUCCESS",
    "free of the host's memory": "INVALID_VALUE",
    "free inside an allocation": "INVALID_VALUE",
    "copy from freed memory": "INVALID_VALUE",
    "wrong CUcontext": "INVALID_CONTEXT",
    "wrong CUstream": "INVALID_HANDLE",
    "wrong CUevent": "INVALID_HANDLE",
    "wrong CUmodule": "INVALID_HANDLE",
    "unknown function": "NOT_FOUND",
    "unknown global": "NOT_FOUND",
    "block too large": "INVALID_VALUE",
    "empty grid": "INVALID_VALUE",
    "too much shared memory": "INVALID_VALUE",
    "function of an unloaded module": "INVALID_HANDLE",
    "unknown device": "INVALID_DEVICE",
    "cubin": "NO_BINARY_FOR_GPU",
    "not PTX": ["INVALID_PTX", "line 1: .*hello"],
    "unknown instruction": ["INVALID_PTX", "line 5: unknown instruction frobnicate.f32"],
    "unknown register": ["INVALID_PTX", "line 4: unknown register %r2"],
    "half a module": ["INVALID_PTX", "line 4: .*end of text"],
    "PTX of the future": ["UNSUPPORTED_PTX_VERSION", "line 1: PTX 12.0"],
    "sound module": ["SUCCESS", ""],
    "vendor's private table": "NOT_SUPPORTED",
    "not implemented": "NOT_SUPPORTED",
    "null in a kernel": ["SUCCESS", "ILLEGAL_ADDRESS", "ILLEGAL_ADDRESS", "ILLEGAL_ADDRESS"],
    "null in a kernel with barriers": ["SUCCESS", "ILLEGAL_ADDRESS", "ILLEGAL_ADDRESS", "ILLEGAL_ADDRESS"],
    "far past the end": ["SUCCESS", "ILLEGAL_ADDRESS", "ILLEGAL_ADDRESS", "ILLEGAL_ADDRESS"],
    "trap": ["SUCCESS", "LAUNCH_FAILED", "LAUNCH_FAILED", "LAUNCH_FAILED"],
    "barrier that no other thread reaches": ["SUCCESS", "LAUNCH_TIMEOUT", "LAUNCH_TIMEOUT", "LAUNCH_TIMEOUT"],
    "after all that": 32 * 7,
}


@pytest.fixture(scope="module")
def found(client: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    return client("bad_input.py", "--memory", "1Gi")


@pytest.mark.parametrize("case", EXPECTED)
def test_an_invalid_call_returns_the_drivers_error(found: dict[str, Any], case: str) -> None:
    want = EXPECTED[case]
    if isinstance(want, list) and len(want) == 2:
        assert found[case][0] == want[0]
        assert re.search(want[1], found[case][1])
    else:
        assert found[case] == want


def test_every_case_of_the_client_is_checked(found: dict[str, Any]) -> None:
    assert found.keys() == EXPECTED.keys()
