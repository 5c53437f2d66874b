"""A `GpuService` as its author writes it, and its status as the scheduler service writes it."""

import re
from typing import Any

import msgspec

from milligpu.model.errors import BadFormat, BadRequest
from milligpu.model.gpu_service import (
    DEADLINE_MAX_S,
    DEADLINE_MIN_S,
    DEADLINE_S,
    NAME_MAX,
    PORT_MAX,
    PRESETS,
    REPLICAS_MAX,
    TARGET_MAX,
    GpuService,
    LoadSource,
    LoadTarget,
    ReplicaRange,
    ScaleKind,
    ScaleTarget,
    ShareRange,
)
from milligpu.model.units import WHOLE, Milli, parse_whole
from milligpu.wire.fields import Json, read_flag, read_mapping, refuse_unknown
from milligpu.wire.kubernetes import KubeCondition, RawObject

KIND = "GpuService"
_APPS = "apps/v1"
METRIC = r"[a-zA-Z_:][a-zA-Z0-9_:]{0,199}"
PATH = r"/[A-Za-z0-9._~/-]{0,199}"
DURATION = r"[1-9][0-9]{0,5}[smh]"
_OBJECT_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_SECONDS = {"s": 1, "m": 60, "h": 3600}


def parse_service(found: Json) -> GpuService:
    """Read a service, or refuse it with field, value and what is allowed."""
    meta = read_mapping("metadata", found.get("metadata"))
    name = meta.get("name", "")
    if not 0 < len(name) <= NAME_MAX:
        raise BadRequest("metadata.name", name, f"at most {NAME_MAX} characters")
    spec = read_mapping("spec", found.get("spec"))
    known = ("scaleTargetRef", "load", "target", "share", "replicas", "update", "paused")
    refuse_unknown("spec", spec, *known)
    source = _source(spec.get("load"))
    return GpuService(
        meta.get("namespace", ""),
        name,
        _scale_target(spec.get("scaleTargetRef")),
        source,
        _load_target(spec.get("target"), source),
        _share(spec.get("share")),
        _replicas(spec.get("replicas")),
        _deadline(spec.get("update")),
        read_flag("spec.paused", spec.get("paused", False)),
    )


def service_of_object(found: RawObject) -> GpuService:
    """Read a service of the cluster. Raises `BadRequest` for one that cannot be used."""
    meta = {"name": found.metadata.name, "namespace": found.metadata.namespace}
    return parse_service({"metadata": meta, "spec": msgspec.json.decode(found.spec)})


def _scale_target(value: object) -> ScaleTarget:
    where = "spec.scaleTargetRef"
    found = read_mapping(where, value)
    refuse_unknown(where, found, "apiVersion", "kind", "name")
    if found.get("apiVersion", _APPS) != _APPS:
        raise BadRequest(f"{where}.apiVersion", found["apiVersion"], _APPS)
    kind, name = found.get("kind"), found.get("name")
    if kind not in list(ScaleKind):
        raise BadRequest(f"{where}.kind", kind, ", ".join(ScaleKind))
    if not (isinstance(name, str) and _OBJECT_NAME.fullmatch(name)):
        raise BadRequest(f"{where}.name", name, f"the name of a {kind} in the same namespace")
    return ScaleTarget(ScaleKind(kind), name)


def _source(value: object) -> LoadSource:
    found = read_mapping("spec.load", value)
    refuse_unknown("spec.load", found, "preset", "port", "path", "requests", "running", "waiting")
    preset = found.get("preset")
    if preset is not None:
        if preset not in PRESETS:
            raise BadRequest("spec.load.preset", preset, ", ".join(PRESETS))
        refuse_unknown("spec.load", found, "preset", "port")
        known = PRESETS[preset]
        port = parse_whole("spec.load.port", found.get("port", known.port), 1, PORT_MAX)
        return LoadSource(port, known.path, known.requests, known.running, known.waiting)
    if "port" not in found:
        raise BadRequest("spec.load", None, "a preset, or port, path and the names of metrics")
    path = found.get("path", "/metrics")
    if not (isinstance(path, str) and re.fullmatch(PATH, path)):
        raise BadRequest("spec.load.path", path, "a path such as /metrics, without a query")
    metrics = [_metric(key, found.get(key, "")) for key in ("requests", "running", "waiting")]
    return LoadSource(parse_whole("spec.load.port", found["port"], 1, PORT_MAX), path, *metrics)


def _metric(key: str, value: object) -> str:
    if value == "" or (isinstance(value, str) and re.fullmatch(METRIC, value)):
        return str(value)
    raise BadRequest(f"spec.load.{key}", value, "the name of a metric, without labels")


def _load_target(value: object, source: LoadSource) -> LoadTarget:
    found = read_mapping("spec.target", value)
    refuse_unknown("spec.target", found, "requests", "running")
    if len(found) > 1:
        raise BadRequest("spec.target", dict(found), "one of requests and running, or neither")
    requests, running = (
        None if found.get(key) is None else parse_whole(f"spec.target.{key}", found[key], 1, TARGET_MAX)
        for key in ("requests", "running")
    )
    if running is not None and not source.running:
        raise BadRequest("spec.load.running", None, "the gauge that spec.target.running counts")
    if running is None and not source.requests:
        raise BadRequest("spec.load.requests", None, "the counter of requests")
    return LoadTarget(requests, running)


def _share(value: object) -> ShareRange:
    found = read_mapping("spec.share", value)
    refuse_unknown("spec.share", found, "min", "max")
    if "max" not in found:
        raise BadRequest("spec.share.max", None, f"milli-GPU from 1 to {WHOLE}")
    most = parse_whole("spec.share.max", found["max"], 1, WHOLE)
    least = None if found.get("min") is None else Milli(parse_whole("spec.share.min", found["min"], 1, most))
    return ShareRange(Milli(most), least)


def _replicas(value: object) -> ReplicaRange | None:
    if value is None:
        return None
    found = read_mapping("spec.replicas", value)
    refuse_unknown("spec.replicas", found, "min", "max")
    if "max" not in found:
        raise BadRequest("spec.replicas.max", None, f"a whole number from 1 to {REPLICAS_MAX}")
    most = parse_whole("spec.replicas.max", found["max"], 1, REPLICAS_MAX)
    return ReplicaRange(parse_whole("spec.replicas.min", found.get("min", 1), 1, most), most)


def _deadline(value: object) -> int:
    found = read_mapping("spec.update", value)
    refuse_unknown("spec.update", found, "deadline")
    text = found.get("deadline")
    if text is None:
        return DEADLINE_S
    good = isinstance(text, str) and re.fullmatch(DURATION, text) is not None
    seconds = int(text[:-1]) * _SECONDS[text[-1]] if good else 0
    if not DEADLINE_MIN_S <= seconds <= DEADLINE_MAX_S:
        raise BadRequest("spec.update.deadline", text, "a time from 10s to 24h, such as 10m")
    return seconds


# -- status --------------------------------------------------------------------------------------------------


class ServiceDecisionStatus(msgspec.Struct, frozen=True):
    """One of `status.decisions`."""

    at: str
    message: str


class GpuServiceStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """`status` of a `GpuService`."""

    share: int = 0
    """Milli-GPU that each pod should be guaranteed."""
    granted: int = 0
    """Milli-GPU that its pods are guaranteed together."""
    replicas: int = 0
    """Of the target, as last seen."""
    ready: int = 0
    requests: float | None = None
    """A second, on average over the last ones."""
    running: float | None = None
    waiting: float | None = None
    needed: int | None = None
    """Milli-GPU for this load, all pods together."""
    gpuSecondsPerRequest: float | None = None
    """As learned from the agents' accounts."""
    startSeconds: float | None = None
    """From a pod's creation until it was Ready, on average."""
    starts: int = 0
    decisions: tuple[ServiceDecisionStatus, ...] = ()
    """The last ones, the latest first."""
    conditions: tuple[KubeCondition, ...] = ()


_status_decoder = msgspec.json.Decoder(GpuServiceStatus)


def decode_service_status(text: bytes) -> GpuServiceStatus:
    """Read a status."""
    try:
        return _status_decoder.decode(text)
    except msgspec.DecodeError as error:
        raise BadFormat("status of GpuService", str(error)) from None


def status_of_service(found: RawObject) -> GpuServiceStatus:
    """Return the status of a service; one that cannot be read is none."""
    try:
        return decode_service_status(bytes(found.status))
    except BadFormat:
        return GpuServiceStatus()


def as_object(service: GpuService, preset: str = "") -> dict[str, Any]:
    """Return a service as its author would write it."""
    share = {key: value for key, value in (("min", service.share.min), ("max", service.share.max)) if value}
    source = service.source
    load: dict[str, Any] = {"preset": preset}
    if not preset:
        metrics = {"requests": source.requests, "running": source.running, "waiting": source.waiting}
        load = {"port": source.port, "path": source.path} | {key: each for key, each in metrics.items() if each}
    elif source.port != PRESETS[preset].port:
        load["port"] = source.port
    spec: dict[str, Any] = {
        "scaleTargetRef": {"apiVersion": _APPS, "kind": str(service.target.kind), "name": service.target.name},
        "load": load,
        "share": share,
    }
    if service.replicas is not None:
        spec["replicas"] = {"min": service.replicas.min, "max": service.replicas.max}
    meta = {"name": service.name, "namespace": service.namespace}
    return {"apiVersion": "milligpu.dev/v1alpha1", "kind": KIND, "metadata": meta, "spec": spec}
