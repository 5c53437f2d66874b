"""The one kind of error a caller of this package has to expect: a line that says what, and one that helps."""


class DevclusterError(Exception):
    """Something the person or the test has to know; `hint` says what to do about it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message}\nhint: {hint}" if hint else message)
        self.message = message
        self.hint = hint
