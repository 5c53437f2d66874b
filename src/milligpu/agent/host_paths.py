"""Paths of the node, for an agent that may run in a container and a driver that may have a root of its own.

CDI files name paths as the node sees them. An agent in a container has the node's root directory mounted somewhere
(`--host-root`). The driver's files are below the node's root, or below another directory if the driver itself is
installed by a container (`--driver-root`, such as /run/nvidia/driver).
"""

import errno
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/")
# More links than any path has; the kernel gives up after 40.
_LINKS_MAX = 40
DRIVER_CONTAINER = Path("/run/nvidia/driver")
"""Where NVIDIA's driver container has its root on the node."""


@dataclass(frozen=True, slots=True)
class HostPaths:
    """Where this process sees the node's files."""

    root: Path = _ROOT
    """The node's root directory."""
    driver: Path = _ROOT
    """The root of the driver's files, as the node sees it."""

    def here(self, path: Path | str) -> Path:
        """Return where this process finds a path of the node."""
        return self.root / resolve_below(self.root, Path(path)).relative_to(_ROOT)

    def exists(self, path: Path | str) -> bool:
        """Whether the node has this path."""
        try:
            return self.here(path).exists()
        except OSError:
            return False

    @property
    def driver_root(self) -> Path:
        """Where this process sees the root of the driver's files."""
        return self.here(self.driver)

    def of_driver(self, path: Path) -> Path:
        """Return the node's path of a file below the driver's root; its links are followed there."""
        return self.driver / resolve_below(self.driver_root, path).relative_to(_ROOT)


def resolve_below(root: Path, path: Path) -> Path:
    """Follow all symbolic links of `path` as a process sees them whose root directory is `root`."""
    if root == _ROOT:
        return path.resolve()
    done, todo, links = _ROOT, list(path.parts[::-1]), 0
    while todo:
        part = todo.pop()
        if part in ("/", "."):
            done = _ROOT if part == "/" else done
        elif part == "..":
            done = done.parent
        elif (here := root / (done / part).relative_to(_ROOT)).is_symlink():
            links += 1
            if links > _LINKS_MAX:
                raise OSError(errno.ELOOP, "too many symbolic links", str(path))
            todo += here.readlink().parts[::-1]
        else:
            done /= part
    return done
