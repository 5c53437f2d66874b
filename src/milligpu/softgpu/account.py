"""Who holds what of one card. Pure: the daemon tells it what happened and passes on the answer."""

from dataclasses import dataclass, field
from uuid import UUID

from milligpu.softgpu.models import Model


@dataclass(slots=True)
class Client:
    """One connected process."""

    pid: int
    memory: int = 0
    contexts: int = 0
    slots: set[int] = field(default_factory=set[int])
    """Of its contexts, on the card's activity page."""


@dataclass(slots=True)
class Account:
    """A card's memory, exact to the byte; nobody can hold what is not there."""

    index: int
    model: Model
    uuid: UUID
    memory: int
    used: int = 0
    clients: list[Client] = field(default_factory=list[Client])

    @property
    def free(self) -> int:
        """What is left."""
        return self.memory - self.used

    def connect(self, pid: int) -> Client:
        """A process has opened the card."""
        client = Client(pid)
        self.clients.append(client)
        return client

    def reserve(self, client: Client, size: int) -> bool:
        """Take memory, all of it or none."""
        if size > self.free:
            return False
        self.used += size
        client.memory += size
        return True

    def release(self, client: Client, size: int) -> bool:
        """Give memory back; more than was taken is refused."""
        if size > client.memory - client.contexts * self.model.context_memory:
            return False
        self.used -= size
        client.memory -= size
        return True

    def open_context(self, client: Client) -> bool:
        """A context takes its share before anything is allocated in it."""
        if not self.reserve(client, self.model.context_memory):
            return False
        client.contexts += 1
        return True

    def close_context(self, client: Client) -> bool:
        """Give a context's share back."""
        if not client.contexts:
            return False
        client.contexts -= 1
        return self.release(client, self.model.context_memory)

    def disconnect(self, client: Client) -> None:
        """However the process ended: everything it held is free again."""
        self.used -= client.memory
        self.clients.remove(client)
