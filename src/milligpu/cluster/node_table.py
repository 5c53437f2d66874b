"""The nodes of the cluster state: their facts, and which of them a pod's own conditions allow."""

from milligpu.cluster.node_constraints import NodeConstraints, NodeFacts
from milligpu.placement.decide import Placer
from milligpu.placement.row_cache import RowCache
from milligpu.placement.snapshot import BoolArray

# A cluster has a handful of ways in which pods choose nodes; a mask of 5,000 rows is 5 KB.
_MASKS_MAX = 1024


class NodeTable:
    """The facts of all nodes, by name."""

    def __init__(self, placer: Placer) -> None:
        self._placer = placer
        self._facts: dict[str, NodeFacts] = {}
        self._masks = RowCache[NodeConstraints, BoolArray | None](placer.snapshot, _MASKS_MAX)

    def __len__(self) -> int:
        return len(self._facts)

    def put(self, name: str, facts: NodeFacts) -> bool:
        """Add or update a node; False if nothing changed."""
        if self._facts.get(name) == facts:
            return False
        self._facts[name] = facts
        self._masks.clear()
        return True

    def drop(self, name: str) -> None:
        self._facts.pop(name, None)
        self._masks.clear()

    def admitted(self, constraints: NodeConstraints) -> list[str]:
        """Return the nodes that a pod's own conditions allow."""
        return [name for name, facts in self._facts.items() if constraints.admit(facts)]

    def excluded(self, constraints: NodeConstraints) -> dict[str, str]:
        """The nodes that these conditions exclude, with the condition that does."""
        refused = {name: constraints.refuse(self._facts[name]) for name in self.considered(constraints)}
        return {name: why for name, why in refused.items() if why is not None}

    def considered(self, constraints: NodeConstraints) -> list[str]:
        """The nodes that a person would count for such a pod: GPU servers for a remote share, nodes for others."""
        return [name for name, facts in self._facts.items() if facts.remote is constraints.remote]

    def mask(self, constraints: NodeConstraints) -> BoolArray | None:
        """Return the rows of the nodes that a pod's own conditions allow; None for all."""

        def find() -> BoolArray | None:
            names = self.admitted(constraints)
            return None if len(names) == len(self) else self._placer.mask(names)

        return self._masks.get(constraints, find)
