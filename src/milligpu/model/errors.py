"""What can go wrong, as one small tree.

Every error has its values as fields, so that each caller can answer in its own format, and reads as one line: what
is wrong, with which field or object, and what is allowed. A `hint` says what to do, if that is known.
"""


class MilligpuError(Exception):
    """The root of all errors that milligpu raises on purpose."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class BadRequest(MilligpuError):
    """A field of a request is invalid or missing; nothing is granted.

    `value` is what the user wrote, or None where a value is required. `want` reads well after "must be", or after
    "required:".
    """

    def __init__(self, field: str, value: object, want: str, *, hint: str = "") -> None:
        problem = f"required: {want}" if value is None else f"invalid value {_shown(value)}: must be {want}"
        super().__init__(f"{field}: {problem}", hint=hint)
        self.field = field
        self.value = value
        self.want = want

    def inside(self, where: str) -> "BadRequest":
        """Return the same error with a place, such as a container or a file, before the field."""
        return BadRequest(f"{where}: {self.field}", self.value, self.want, hint=self.hint)


class BadFormat(MilligpuError):
    """A stored or sent document violates its format; none of it is used."""

    def __init__(self, document: str, problem: str, *, hint: str = "") -> None:
        super().__init__(f"{document}: {problem}", hint=hint)
        self.document = document
        self.problem = problem


class NewerDocument(BadFormat):
    """A newer milligpu wrote the document. A reader must neither delete it nor count it as nothing."""

    def __init__(self, document: str, version: int, newest: int) -> None:
        problem = f"version {version} is newer than version {newest}, the newest that this program reads"
        super().__init__(document, problem, hint="upgrade milligpu here")
        self.version = version


class NoCapacity(MilligpuError):
    """The request is valid, but no GPU has room for it now."""


class Unavailable(MilligpuError):
    """A dependency (the API server, the kubelet, a daemon, a tool) is missing or does not answer."""


# Long enough for every sensible value, short enough for one line of a log.
_SHOWN_MAX = 80


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[: _SHOWN_MAX - 1]}…"
