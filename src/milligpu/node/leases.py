"""The arbiter's tenants on this node: every container with a share, by the name it was promised under."""

from milligpu.agent.arbiter import Arbiter, LeaseAccount
from milligpu.node.attach import Attached
from milligpu.node.attachments import Attachments, is_whole


class Leases:
    """Names instead of the arbiter's numbers. Whole cards have no lease."""

    def __init__(self, arbiter: Arbiter) -> None:
        self._arbiter = arbiter
        self._numbers: dict[str, int] = {}

    def add(self, attached: Attached, attachments: Attachments) -> None:
        """Arbitrate for this container from now on."""
        if attached.name not in self._numbers and not is_whole(attached):
            self._numbers[attached.name] = self._arbiter.add(attachments.tenant(attached.name).folder)

    def remove(self, name: str) -> None:
        """Its leases end."""
        number = self._numbers.pop(name, None)
        if number is not None:
            self._arbiter.remove(number)

    def accounts(self, name: str) -> tuple[LeaseAccount, ...]:
        """What it had of its cards, in the order of its page; empty for whole cards."""
        number = self._numbers.get(name)
        return () if number is None else self._arbiter.accounts(number)
