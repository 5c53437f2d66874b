"""What the limits page and the usage page have in common.

Both lie in memory that the agent and a tenant's processes share; `native/include/milligpu/pages.h` mirrors their
layout, and each side checks its sizes when it is built or imported.
"""

from milligpu.model.errors import BadFormat
from milligpu.wire.documents import DocumentFormat

# Two HGX boards have this many GPUs; a container with more has them whole.
PAGE_GPUS = 16


def check_head(page: DocumentFormat, magic: int, want: int, version: int) -> None:
    """Refuse a page that is of another kind or version."""
    if magic != want:
        raise BadFormat(page.name, f"magic is {magic:#x}, must be {want:#x}")
    page.check(version)
