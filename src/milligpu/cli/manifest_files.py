"""The option `-f`, and reading manifests from YAML or JSON, with errors that name the file and the document."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from milligpu.model.errors import BadFormat, BadRequest

# Larger than any real manifest; a wrong file name must not fill the memory.
FILE_MAX = 64 * 1024 * 1024

_F = TypeVar("_F", bound=Callable[..., Any])


def filename_option(what: str, *, required: bool = True) -> Callable[[_F], _F]:
    """Add `-f`, which kubectl has too; the command gets the names as `files`."""
    return click.option(
        "-f",
        "--filename",
        "files",
        multiple=True,
        required=required,
        metavar="FILE",
        help=f"{what}, or - for stdin; can be repeated.",
    )


def read_manifests(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each Kubernetes object of a file (`-` is stdin), also from inside a List, with its position."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        documents: list[object] = list(yaml.load_all(_text(name), loader))
    except yaml.YAMLError as error:
        raise BadFormat(name, f"not YAML: {' '.join(str(error).split())}") from None
    for number, document in enumerate(documents, 1):
        if document is not None:
            yield from _objects(f"{name} document {number}", document)


def _objects(where: str, document: object) -> Iterator[tuple[str, dict[str, Any]]]:
    if not isinstance(document, dict):
        raise BadFormat(where, "must be a Kubernetes object: a mapping with kind and metadata")
    found = cast("dict[str, Any]", document)
    kind = found.get("kind")
    if not isinstance(kind, str):
        raise BadRequest(f"{where}: kind", kind, "the kind of a Kubernetes object")
    if not kind.endswith("List"):
        yield where, found
        return
    items = found.get("items")
    if not isinstance(items, list):
        raise BadRequest(f"{where}: items", items, "a list")
    for number, item in enumerate(cast("list[object]", items), 1):
        yield from _objects(f"{where} item {number}", item)


def _text(name: str) -> str:
    try:
        data = sys.stdin.buffer.read(FILE_MAX + 1) if name == "-" else _bytes(Path(name))
        if len(data) > FILE_MAX:
            raise BadFormat(name, f"too large: must be at most {FILE_MAX // 1024**2} MiB")
        return data.decode()
    except OSError as error:
        raise BadRequest("file", name, f"a readable file ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise BadFormat(name, f"not UTF-8 at byte {error.start}") from None


def _bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(FILE_MAX + 1)
