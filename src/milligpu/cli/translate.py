"""`milligpu translate`: how milligpu reads GPU requests of other systems."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import click

from milligpu import dialects
from milligpu.cli.dialect_options import dialect_options
from milligpu.cli.exit_codes import ExitCode
from milligpu.cli.manifest_files import filename_option, read_manifests
from milligpu.cli.output import OutputFormat, format_option, show_data, show_table
from milligpu.dialects.describe import condition_text, request_data, share_columns
from milligpu.dialects.settings import DialectSettings
from milligpu.dialects.templates import PATHS, pod_of_template
from milligpu.model.errors import BadRequest
from milligpu.model.request import PodRequest


@dataclass(frozen=True, slots=True)
class TranslatedManifest:
    """One manifest, and the request in it or why it would be refused."""

    where: str
    kind: str
    namespace: str
    name: str
    answer: PodRequest | BadRequest

    @property
    def title(self) -> str:
        return f"{self.kind.lower()}/{self.name}"


@click.command()
@filename_option("Manifest")
@dialect_options()
@format_option(OutputFormat.TABLE, OutputFormat.JSON, OutputFormat.YAML)
def command(files: tuple[str, ...], settings: DialectSettings, output: OutputFormat) -> int:
    """Show how milligpu reads manifests written for other systems: GPUs, share, memory and conditions.

    Reads Pods, SharePods, Deployments, ReplicaSets, StatefulSets, DaemonSets, Jobs and CronJobs, and skips other
    kinds. A manifest that would be refused is shown with the reason, and the exit code is 2.
    """
    found = [each for name in files for each in _translate(name, settings)]
    if output is OutputFormat.TABLE:
        _tables(found)
    else:
        show_data([_data(each) for each in found], output)
    refused = [each for each in found if isinstance(each.answer, BadRequest)]
    if refused:
        click.echo(f"error: {len(refused)} of {len(found)} manifests refused", err=True)
    return ExitCode.BAD_INPUT if refused else ExitCode.OK


def _translate(file: str, settings: DialectSettings) -> Iterator[TranslatedManifest]:
    for where, found in read_manifests(file):
        if found["kind"] not in PATHS:
            click.echo(f"skipped: {where}: {found['kind']} has no pods that milligpu reads", err=True)
            continue
        metadata = _mapping(found.get("metadata"))
        try:
            answer: PodRequest | BadRequest = dialects.read_pod(_pod(where, found), settings)
        except BadRequest as error:
            answer = error
        name = str(metadata.get("name") or metadata.get("generateName") or "")
        yield TranslatedManifest(where, found["kind"], str(metadata.get("namespace") or "default"), name, answer)


def _pod(where: str, found: dict[str, Any]) -> dict[str, Any]:
    pod = pod_of_template(found["kind"], found)
    for key in ("annotations", "labels"):
        pod["metadata"][key] = _quoted(where, key, pod["metadata"].get(key))
    return pod


def _quoted(where: str, key: str, values: object) -> object:
    """Annotations and labels as text: Kubernetes refuses numbers there, but published examples have them."""
    if not isinstance(values, dict):
        return values
    quoted: dict[str, object] = {}
    for name, value in cast("dict[str, object]", values).items():
        quoted[name] = value
        if isinstance(value, (int, float)):
            quoted[name] = str(value).lower()
            field = f"{where}: metadata.{key}[{name}]"
            click.echo(f"warning: {field}: Kubernetes requires quotes around {value}", err=True)
    return quoted


def _mapping(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _tables(found: list[TranslatedManifest]) -> None:
    rows: list[list[str]] = []
    refused: list[list[str]] = []
    for manifest in found:
        if isinstance(manifest.answer, BadRequest):
            hint = f" ({manifest.answer.hint})" if manifest.answer.hint else ""
            refused.append([manifest.title, manifest.answer.message + hint])
        else:
            rows += _rows(manifest.title, manifest.answer)
    if rows:
        columns = ["MANIFEST", "DIALECT", "CONTAINER", "GPUS", "SHARE", "MEMORY", "LIMIT", "CONDITIONS"]
        show_table(columns, rows, right=["GPUS", "SHARE", "MEMORY", "LIMIT"])
    if rows and refused:
        click.echo()
    if refused:
        show_table(["REFUSED MANIFEST", "REASON"], refused)


def _rows(title: str, request: PodRequest) -> Iterator[list[str]]:
    if not request.wants_gpu:
        yield [title, request.dialect, "", "0", "", "", "", condition_text(request)]
    for container in request.containers:
        if container.share is not None:
            yield [title, request.dialect, container.name, *share_columns(container.share), condition_text(request)]


def _data(manifest: TranslatedManifest) -> dict[str, Any]:
    data = {"source": manifest.where, "kind": manifest.kind, "namespace": manifest.namespace, "name": manifest.name}
    if isinstance(manifest.answer, BadRequest):
        error = manifest.answer
        value = error.value if isinstance(error.value, (str, int, float)) else error.value and str(error.value)
        why = {"field": error.field, "value": value, "want": error.want, "hint": error.hint or None}
        return {**data, "refused": {key: value for key, value in why.items() if value is not None}}
    return {**data, **request_data(manifest.answer)}
