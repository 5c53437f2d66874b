"""What if pods left or held less: changes of a snapshot that are undone."""

from milligpu.placement.snapshot import Holding, Snapshot


class Trial:
    """What pods hold if some of them leave or are shrunk; as a context, it undoes that."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snap = snapshot
        self._before: dict[str, Holding | None] = {}

    def __enter__(self) -> "Trial":
        return self

    def __exit__(self, *_: object) -> None:
        for uid, holding in self._before.items():
            self.put(uid, holding)

    def put(self, uid: str, holding: Holding | None) -> None:
        """Let a pod hold this from now on, or nothing."""
        held = self._snap.release(uid) if uid in self._snap.holdings else None
        self._before.setdefault(uid, held)
        if holding is not None:
            self._snap.take(holding, force=True)
