"""JSON schemas of Kubernetes' own objects, for kubeconform: from the OpenAPI document in Kubernetes' Go module.

Nothing is built: `go mod download` fetches the module, and one file of it is read.
"""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from devcluster import cache
from devcluster.errors import DevclusterError

SUPPORTED = ("v1.33.6", "v1.34.4", "v1.35.4", "v1.36.3", "v1.37.1")
"""A release of each minor version that the chart supports."""
LOCATION = "{{.ResourceKind}}{{.KindSuffix}}.json"
"""The names of the files, as kubeconform looks for them."""
_PREFIX = "#/definitions/"
# Written in two ways, which the document does not say.
_EITHER = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": {"type": ["string", "number"]},
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": {"type": ["string", "integer"]},
}


def schemas(version: str) -> Path:
    """The directory with a schema for each kind of this version of Kubernetes."""
    recipe = cache.checksum([Path(__file__).read_bytes(), version.encode()])
    return cache.made("schemas", f"{version}-{recipe}", lambda draft: _make(version, draft))


def minor_versions() -> list[str]:
    """The supported minor versions, such as 1.36."""
    return [cast(Any, re.match(r"v(\d+\.\d+)", version))[1] for version in SUPPORTED]


def _make(version: str, draft: Path) -> None:
    # Outside any module, so that no go.mod is read or changed.
    command = ["go", "mod", "download", "-json", f"k8s.io/kubernetes@{version}"]
    done = subprocess.run(command, cwd=draft, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DevclusterError(f"{' '.join(command)} failed:\n{done.stderr.strip() or done.stdout.strip()}")
    document = Path(json.loads(done.stdout)["Dir"], "api/openapi-spec/swagger.json")
    found: dict[str, Any] = json.loads(document.read_text())["definitions"]
    definitions: dict[str, Any] = {name: _strict(body) for name, body in found.items()} | _EITHER
    for name, body in found.items():
        kinds: list[dict[str, str]] = body.get("x-kubernetes-group-version-kind", [])
        if len(kinds) == 1:  # those of every group, such as DeleteOptions, are in no manifest
            needed = {each: definitions[each] for each in _needed(name, definitions)}
            schema = {"$ref": _PREFIX + name, "definitions": needed}
            (draft / _file_name(kinds[0])).write_text(json.dumps(schema))


def _file_name(kind: Mapping[str, str]) -> str:
    group = kind["group"].partition(".")[0]
    return "-".join(filter(None, (kind["kind"].lower(), group, kind["version"]))) + ".json"


def _strict(schema: Any) -> Any:
    """The same schema, which refuses fields that it does not have."""
    if isinstance(schema, list):
        return [_strict(each) for each in cast(list[Any], schema)]
    if not isinstance(schema, dict):
        return schema
    found = {key: _strict(value) for key, value in cast(dict[str, Any], schema).items()}
    if isinstance(found.get("properties"), dict) and "type" in found:
        found.setdefault("additionalProperties", False)
    return found


def _needed(name: str, definitions: Mapping[str, Any]) -> set[str]:
    needed: set[str] = set()
    waiting = [name]
    while waiting:
        each = waiting.pop()
        if each not in needed:
            needed.add(each)
            waiting += _references(definitions[each])
    return needed


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        for key, value in cast(dict[str, Any], schema).items():
            if key == "$ref" and isinstance(value, str):
                yield value.removeprefix(_PREFIX)
            else:
                yield from _references(value)
    elif isinstance(schema, list):
        for each in cast(list[Any], schema):
            yield from _references(each)
