"""The golden tables: manifests in short, and what each means or why it is refused."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

GOLDEN = Path(__file__).parent / "golden"


@dataclass(frozen=True)
class Case:
    file: str
    name: str
    pod: dict[str, Any]
    means: dict[str, Any] | None
    refused: dict[str, Any] | None


def cases() -> Iterator[Case]:
    for path in sorted(GOLDEN.glob("*.yaml")):
        for entry in yaml.safe_load(path.read_text()):
            yield Case(path.stem, entry["case"], _pod(entry), entry.get("means"), entry.get("refused"))


def _pod(entry: dict[str, Any]) -> dict[str, Any]:
    if "pod" in entry:
        return {"apiVersion": "v1", "kind": "Pod", **entry["pod"]}
    main = {"name": "main", **{key: entry[key] for key in ("command", "args") if key in entry}}
    main["resources"] = {key: entry[key] for key in ("limits", "requests") if key in entry}
    metadata = {"name": "p", **{key: entry[key] for key in ("annotations", "labels") if key in entry}}
    spec: dict[str, Any] = {"containers": [main], "nodeSelector": entry.get("selector", {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
