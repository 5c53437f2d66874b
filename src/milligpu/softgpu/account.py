"""Memory and contexts of one GPU, per client. Pure: the daemon reports each change and returns the answer."""

from dataclasses import dataclass, field
from uuid import UUID

from milligpu.softgpu.models import GpuModel


@dataclass(slots=True)
class GpuClient:
    """One connected process."""

    pid: int
    memory: int = 0
    contexts: int = 0
    slots: set[int] = field(default_factory=set[int])
    """Slots of its contexts on the GPU's activity page."""


@dataclass(slots=True)
class SoftGpuMemory:
    """The memory of one GPU, exact to the byte and never over-committed."""

    index: int
    model: GpuModel
    uuid: UUID
    memory: int
    used: int = 0
    clients: list[GpuClient] = field(default_factory=list[GpuClient])

    @property
    def free(self) -> int:
        return self.memory - self.used

    def connect(self, pid: int) -> GpuClient:
        """Add a process that has opened the GPU."""
        client = GpuClient(pid)
        self.clients.append(client)
        return client

    def reserve(self, client: GpuClient, size: int) -> bool:
        """Reserve all of `size`, or nothing."""
        if size > self.free:
            return False
        self.used += size
        client.memory += size
        return True

    def release(self, client: GpuClient, size: int) -> bool:
        """Release memory; refuse to release more than the client reserved."""
        if size > client.memory - client.contexts * self.model.context_memory:
            return False
        self.used -= size
        client.memory -= size
        return True

    def open_context(self, client: GpuClient) -> bool:
        """Reserve a context's own memory, which it needs before the first allocation."""
        if not self.reserve(client, self.model.context_memory):
            return False
        client.contexts += 1
        return True

    def close_context(self, client: GpuClient) -> bool:
        """Release a context's own memory."""
        if not client.contexts:
            return False
        client.contexts -= 1
        return self.release(client, self.model.context_memory)

    def disconnect(self, client: GpuClient) -> None:
        """Release everything that the process held, however it ended."""
        self.used -= client.memory
        self.clients.remove(client)
