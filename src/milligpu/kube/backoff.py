"""How long to wait before a failed request is sent again."""

import random

from milligpu.kube.api import ApiRefused
from milligpu.model.errors import Unavailable

# Long enough not to flood an API server that restarts, short enough not to matter.
RETRY_S = 0.5
# Thousands of clients that retry this often are a small load.
RETRY_MAX_S = 8.0
# An API server that asks for more than this is asked again anyway: a node must not stay behind for minutes.
_ASKED_MAX_S = 60.0


class Backoff:
    """Doubles the wait after each failure in a row; a random part keeps clients from coming back all at once."""

    def __init__(self, first_s: float = RETRY_S, most_s: float = RETRY_MAX_S) -> None:
        self._first_s = first_s
        self._most_s = max(first_s, most_s)
        self._next_s = first_s

    def reset(self) -> None:
        """Note a success."""
        self._next_s = self._first_s

    def after(self, error: Unavailable) -> float:
        """Return the seconds to wait after this error; `Retry-After` of the server is honored."""
        wait_s = self._next_s * (0.5 + random.random() / 2)
        self._next_s = min(self._most_s, 2 * self._next_s)
        asked_s = error.retry_after_s if isinstance(error, ApiRefused) else 0.0
        return max(wait_s, min(asked_s, _ASKED_MAX_S))
