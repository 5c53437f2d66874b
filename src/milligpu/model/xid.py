"""XIDs: the numbers by which NVIDIA's driver reports errors of a GPU."""

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""XIDs that an application causes; the GPU is healthy, and the next program runs."""

# The most frequent of the others, in words.
_WORDS = {
    48: "uncorrectable memory error",
    61: "internal microcontroller breakpoint",
    62: "internal microcontroller halt",
    63: "memory page retired or row remapped",
    64: "memory page could not be retired or row not remapped",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    92: "many correctable memory errors",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "GPU firmware does not answer",
    120: "GPU firmware error",
    140: "unrecovered memory error",
}


def describe_xid(xid: int) -> str:
    """An XID with its meaning, where that is known."""
    return f"XID {xid}: {_WORDS[xid]}" if xid in _WORDS else f"XID {xid}"
