"""The one error that callers of this package have to expect: a message and a hint."""


class DevclusterError(Exception):
    """An error that concerns the user or the test; `hint` says what to do about it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message}\nhint: {hint}" if hint else message)
        self.message = message
        self.hint = hint
