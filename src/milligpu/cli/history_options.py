"""Where the history is, and the prices: for `dashboard`, `cost` and `advise`."""

import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from milligpu.model.errors import BadRequest

if TYPE_CHECKING:
    from milligpu.status.prices import Prices


def history_path(cluster: bool, kubeconfig: str | None) -> Path:
    """The file of this machine's history, or of the cluster's as this user's dashboard keeps it."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state", "milligpu")
    if not cluster:
        return state / "history-machine.db"
    from milligpu.kube.config import find_cluster

    server = find_cluster(kubeconfig).cluster.server
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", server.partition("://")[2] or server)[:60]
    return state / f"history-{name}-{hashlib.sha256(server.encode()).hexdigest()[:8]}.db"


def load_prices(path: str | None) -> "Prices":
    """Read the prices file; without one, nothing has a price."""
    from milligpu.status.prices import NO_PRICES, read_prices

    if path is None:
        return NO_PRICES
    try:
        return read_prices(Path(path).read_text(encoding="utf-8"), path)
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest("--prices", path, f"a readable file ({error})") from None
