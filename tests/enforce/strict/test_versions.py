"""Drivers that are older or newer than the header of the limits library."""

import json

import pytest

from tests.enforce.strict.conftest import StrictMachines


@pytest.mark.parametrize(
    ("version", "context"),
    [
        (11_080, "cuCtxCreate_v3"),
        (12_020, "cuCtxCreate_v3"),
        (12_080, "cuCtxCreate_v4"),
        (13_040, "cuCtxCreate_v4"),
        (13_060, ""),
    ],
)
def test_the_drivers_version_is_passed_on_and_functions_of_newer_releases_are_hidden(
    machine: StrictMachines, version: int, context: str
) -> None:
    """The CUDA runtime refuses to run if the version is not the driver's own ("integrity checks failed")."""
    here = machine()
    found = json.loads(here.run(here.tenant(), "versions", STRICT_VERSION=str(version)))
    assert found == {
        "version": version,
        "cuMemAlloc": True,
        "cuStreamQuery": True,
        # The newest variant that both know; the stand-in of a later release has one that only it knows.
        "cuCtxCreate": context,
        "cuFutureAlloc": 0,
    }
