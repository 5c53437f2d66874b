"""When an answer goes back, so that the client keeps its connections.

Go's client keeps two idle connections and closes what else becomes idle. Binds overlap in a burst, so
kube-scheduler would connect anew for most of them, which costs both sides more than the question does, and with TLS
many times more. So an answer that would leave a third connection idle waits for the next such question. The pod is
bound by then: what waits is only kube-scheduler's note of it.
"""

import asyncio
from collections import deque

# What Go's http.Transport keeps for a host unless it is told otherwise; kube-scheduler uses one for filter, and has
# one for the next bind.
IDLE = 2
# Longer than the time between two binds of a burst. After it nobody else comes, and connections may be closed.
LONGEST_S = 0.05


class Handback:
    """Knows how many connections there are, and keeps answers that should wait."""

    def __init__(self) -> None:
        self.connections = 0
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def begin(self) -> None:
        """A question came, and with it the time of answers that waited."""
        self._taken += 1
        while self._waiting and self.connections - self._taken < IDLE:
            self._release(self._waiting.popleft())

    async def end(self) -> None:
        """The answer is there: wait until it should go back."""
        if self.connections - self._taken < IDLE:
            self._taken -= 1
            return
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        self._waiting.append(answer)
        timer = loop.call_later(LONGEST_S, self._release, answer)
        try:
            await answer
        finally:
            timer.cancel()
            if answer.cancelled():
                self._taken -= 1

    def _release(self, answer: "asyncio.Future[None]") -> None:
        if not answer.done():
            answer.set_result(None)
            self._taken -= 1
