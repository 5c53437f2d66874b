"""`milligpu translate`: what a manifest of any dialect asks for here."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import click

from milligpu import dialects
from milligpu.cli.files import manifests
from milligpu.cli.output import Format, format_option, show_data, show_table
from milligpu.dialects.describe import as_data, as_words, conditions
from milligpu.dialects.settings import GpushareUnit, Settings
from milligpu.dialects.templates import PATHS, pod_of
from milligpu.model.errors import BadRequest
from milligpu.model.request import PodRequest

REFUSED = 2


@dataclass(frozen=True, slots=True)
class Meaning:
    """One manifest and what became of it."""

    where: str
    kind: str
    namespace: str
    name: str
    answer: PodRequest | BadRequest

    @property
    def title(self) -> str:
        """As kubectl names things."""
        return f"{self.kind.lower()}/{self.name}"


@click.command()
@click.option(
    "-f", "--filename", "files", multiple=True, required=True, metavar="FILE", help="Manifests; - is stdin."
)
@click.option(
    "--gpushare-unit",
    type=click.Choice([str(unit) for unit in GpushareUnit]),
    default=str(GpushareUnit.AUTO),
    show_default=True,
    help="The unit of aliyun.com/gpu-mem; auto reads up to 512 as GiB.",
)
@click.option(
    "--parts",
    type=click.IntRange(1, 1000),
    default=Settings().parts,
    show_default=True,
    help="Parts of a card for deepomatic.com/shared-gpu and nvidia.com/gpu.shared.",
)
@format_option(Format.TABLE, Format.JSON, Format.YAML)
def command(files: tuple[str, ...], gpushare_unit: str, parts: int, output: Format) -> int:
    """Show what manifests of any dialect ask for here: GPUs, shares, memory, and what else they require.

    Reads Pods, SharePods and what makes pods (Deployments, ReplicaSets, StatefulSets, DaemonSets, Jobs, CronJobs);
    other kinds are skipped. A manifest that would be refused is shown with the reason, and the exit code is 2.
    """
    settings = Settings(GpushareUnit(gpushare_unit), parts)
    found = [meaning for name in files for meaning in _meanings(name, settings)]
    if output is Format.TABLE:
        _tables(found)
    else:
        show_data([_data(meaning) for meaning in found], output)
    refused = [meaning for meaning in found if isinstance(meaning.answer, BadRequest)]
    if refused:
        click.echo(f"error: {len(refused)} of {len(found)} manifests refused", err=True)
    return REFUSED if refused else 0


def _meanings(file: str, settings: Settings) -> Iterator[Meaning]:
    for where, found in manifests(file):
        if found["kind"] not in PATHS:
            click.echo(f"skipped: {where}: {found['kind']} is no kind whose pods are read here", err=True)
            continue
        metadata = _mapping(found.get("metadata"))
        try:
            answer: PodRequest | BadRequest = dialects.read(_pod(where, found), settings)
        except BadRequest as error:
            answer = error
        name = str(metadata.get("name") or metadata.get("generateName") or "")
        yield Meaning(where, found["kind"], str(metadata.get("namespace") or "default"), name, answer)


def _pod(where: str, found: dict[str, Any]) -> dict[str, Any]:
    pod = pod_of(found["kind"], found)
    for key in ("annotations", "labels"):
        pod["metadata"][key] = _quoted(where, key, pod["metadata"].get(key))
    return pod


def _quoted(where: str, key: str, values: object) -> object:
    """Annotations and labels as text. Kubernetes refuses numbers there, and examples write them all the same."""
    if not isinstance(values, dict):
        return values
    quoted: dict[str, object] = {}
    for name, value in cast("dict[str, object]", values).items():
        quoted[name] = value
        if isinstance(value, (int, float)):
            quoted[name] = str(value).lower()
            click.echo(f"note: {where}: metadata.{key}[{name}]={value}: Kubernetes wants it in quotes", err=True)
    return quoted


def _mapping(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _tables(found: list[Meaning]) -> None:
    rows: list[list[str]] = []
    refused: list[list[str]] = []
    for meaning in found:
        if isinstance(meaning.answer, BadRequest):
            hint = f" ({meaning.answer.hint})" if meaning.answer.hint else ""
            refused.append([meaning.title, meaning.answer.message + hint])
        else:
            rows += _rows(meaning.title, meaning.answer)
    if rows:
        columns = ["MANIFEST", "DIALECT", "CONTAINER", "GPUS", "SHARE", "MEMORY", "LIMIT", "CONDITIONS"]
        show_table(columns, rows, right=["GPUS", "SHARE", "MEMORY", "LIMIT"])
    if rows and refused:
        click.echo()
    if refused:
        show_table(["REFUSED", "WHY"], refused)


def _rows(title: str, request: PodRequest) -> Iterator[list[str]]:
    if not request.wants_gpu:
        yield [title, request.dialect, "", "0", "", "", "", conditions(request)]
    for container in request.containers:
        if container.share is not None:
            yield [title, request.dialect, container.name, *as_words(container.share), conditions(request)]


def _data(meaning: Meaning) -> dict[str, Any]:
    data = {"source": meaning.where, "kind": meaning.kind, "namespace": meaning.namespace, "name": meaning.name}
    if isinstance(meaning.answer, BadRequest):
        error = meaning.answer
        value = error.value if isinstance(error.value, (str, int, float)) else error.value and str(error.value)
        why = {"field": error.field, "value": value, "want": error.want, "hint": error.hint or None}
        return {**data, "refused": {key: value for key, value in why.items() if value is not None}}
    return {**data, **as_data(meaning.answer)}
