"""What can go wrong, as one small tree.

Every error carries its fields, so that a shell can answer in its own format, and reads as one line: what,
which field or thing, what is allowed. A `hint` says what to do about it, where that is known.
"""


class MilligpuError(Exception):
    """The root: whatever we raise on purpose."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class BadRequest(MilligpuError):
    """Somebody asked for something that has no meaning; nothing is granted."""

    def __init__(self, field: str, value: object, want: str, *, hint: str = "") -> None:
        super().__init__(f"{field}={_shown(value)}: want {want}", hint=hint)
        self.field = field
        self.value = value
        self.want = want

    def inside(self, where: str) -> "BadRequest":
        """The same refusal with the place it was found in, such as a container or a file, before the field."""
        return BadRequest(f"{where}: {self.field}", self.value, self.want, hint=self.hint)


class BadFormat(MilligpuError):
    """A stored or sent document does not read as its format says; none of it is used."""

    def __init__(self, document: str, problem: str, *, hint: str = "") -> None:
        super().__init__(f"{document}: {problem}", hint=hint)
        self.document = document
        self.problem = problem


class NoCapacity(MilligpuError):
    """The request is sound, but nothing has room for it now."""


class Unavailable(MilligpuError):
    """Something we stand on (the API server, the kubelet, a daemon, a tool) is missing or does not answer."""


# Long enough for every honest value, short enough for one line of a log.
_SHOWN_MAX = 80


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[: _SHOWN_MAX - 1]}…"
