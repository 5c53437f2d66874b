"""Which nodes have which large images: a pod of 10 GB should start where they need not be fetched."""

from collections.abc import Iterable

from milligpu.wire.kubernetes import NodeImage

# kube-scheduler gives no points to less, with the size of an image scaled by the fraction of nodes that have it.
COUNTS_FROM = 23 * 1024 * 1024


class ImageTable:
    """The images of all nodes, by name."""

    def __init__(self) -> None:
        self._on_node: dict[str, tuple[NodeImage, ...]] = {}
        self._sizes: dict[str, int] = {}
        self._nodes: dict[str, int] = {}
        """How many nodes have an image."""

    def put(self, node: str, images: tuple[NodeImage, ...]) -> None:
        """Add or update a node's images."""
        if self._on_node.get(node) == images:
            return
        self.drop(node)
        self._on_node[node] = images
        for name, size in _names(images):
            self._sizes[name] = size
            self._nodes[name] = self._nodes.get(name, 0) + 1

    def drop(self, node: str) -> None:
        for name, _ in _names(self._on_node.pop(node, ())):
            self._nodes[name] -= 1
            if not self._nodes[name]:
                del self._nodes[name], self._sizes[name]

    def differ(self, images: Iterable[str]) -> bool:
        """Whether kube-scheduler prefers some nodes for these images: those that have one of them."""
        total = len(self._on_node)
        for name in images:
            having = self._nodes.get(name, 0)
            if 0 < having < total and self._sizes[name] * having // total >= COUNTS_FROM:
                return True
        return False


def _names(images: tuple[NodeImage, ...]) -> Iterable[tuple[str, int]]:
    return {name: image.sizeBytes for image in images for name in image.names or ()}.items()
