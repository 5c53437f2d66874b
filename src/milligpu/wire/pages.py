"""What the limits page and the usage page have in common.

Both lie in memory that the agent and a tenant's processes share; `native/include/milligpu/pages.h` mirrors their
layout, and each side checks its sizes when it is built or imported.
"""

from milligpu.model.errors import BadFormat

PAGES_VERSION = 1
# A container with more cards than two HGX boards hold does not share them.
PAGE_GPUS = 16


def check_head(name: str, magic: int, want: int, version: int) -> None:
    """Refuse a page that is of another kind or version."""
    if magic != want:
        raise BadFormat(name, f"magic={magic:#x}: want {want:#x}")
    if version != PAGES_VERSION:
        raise BadFormat(name, f"version={version}: want {PAGES_VERSION}")
