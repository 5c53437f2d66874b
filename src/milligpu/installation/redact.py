"""Leaving out of a support bundle what is nobody's business: secrets, environment values, names of people.

Of objects of users, only listed fields are kept, so that a new field of Kubernetes is left out until somebody lists
it. Names of namespaces, pods, containers and owners become `pod-3` and the like, the same in all files. Whatever
looks like a secret or an e-mail address is replaced in all texts.
"""

import re
from collections.abc import Mapping
from typing import Any, TypeAlias, cast

from milligpu.dialects.choose import KNOWN
from milligpu.model import names

REDACTED = "REDACTED"
Shape: TypeAlias = dict[str, Any]
"""The fields to keep: a field with True is kept whole, one with a shape is kept in part."""

_CONTAINER: Shape = {"name": True, "resources": True}
_POD: Shape = {
    "metadata": {
        "creationTimestamp": True,
        "deletionTimestamp": True,
        "name": True,
        "namespace": True,
        "uid": True,
    },
    "spec": {
        "nodeName": True,
        "schedulerName": True,
        "priority": True,
        "nodeSelector": True,
        "tolerations": True,
        "restartPolicy": True,
        "containers": _CONTAINER,
        "initContainers": _CONTAINER,
    },
    "status": {
        "phase": True,
        "reason": True,
        "message": True,
        "nominatedNodeName": True,
        "conditions": True,
        "containerStatuses": {"name": True, "ready": True, "restartCount": True, "state": True, "lastState": True},
    },
}
_NODE: Shape = {
    "metadata": {"creationTimestamp": True, "name": True, "uid": True},
    "spec": {"taints": True, "unschedulable": True},
    "status": {"capacity": True, "allocatable": True, "conditions": True, "nodeInfo": True},
}
_EVENT: Shape = {
    "metadata": {"creationTimestamp": True, "namespace": True},
    "eventTime": True,
    "type": True,
    "reason": True,
    "action": True,
    "note": True,
    "reportingController": True,
    "regarding": {"kind": True, "namespace": True, "name": True, "uid": True},
}
SHAPES = {"Pod": _POD, "Node": _NODE, "Event": _EVENT}
# Labels and annotations of these say something about GPUs and nodes, not about people.
_PLAIN_PREFIXES = (names.PREFIX, "nvidia.com/", "kubernetes.io/", "node.kubernetes.io/", "topology.kubernetes.io/")
# In milligpu's own objects.
_DROPPED = frozenset({"managedFields", "caBundle", "data", "stringData", "binaryData"})
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_WORD = r"[\w.+/=-]"
_SECRETS = (
    re.compile(r"-----BEGIN [^-]+-----.*?-----END [^-]+-----", re.DOTALL),
    re.compile(r"\beyJ[\w-]+\.[\w-]+\.[\w-]*"),
    re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    re.compile(r"(?<=://)[^/@\s\"]+(?=@)"),
    re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b"),
    re.compile(rf"(?i)(?<=\bbearer )\s*{_WORD}+"),
    # With lower and upper letters and digits, as random text has them; hashes and UUIDs have no upper ones.
    re.compile(
        r"\b(?!(?:GPU|MIG)-[\da-f]{8}-)(?=[\w+/-]*[a-z])(?=[\w+/-]*[A-Z])(?=[\w+/-]*\d)[A-Za-z0-9+/_-]{32,}={0,2}"
    ),
)
_NAMED_SECRET = re.compile(
    r"(?i)([\w-]*(?:password|passwd|secret|token|api[_-]?key|credential|authorization|user(?:name)?|owner|email)"
    rf"[\w-]*\\?[\"']?\s*[=:]\s*\\?[\"']?)({_WORD}+)"
)
# Shorter names are parts of ordinary words.
_NAME_MIN = 3


class Redactor:
    """Redacts all files of one bundle, with the same pseudonyms."""

    def __init__(self, own_namespace: str) -> None:
        self._kept = {own_namespace, "default", "kube-system", "kube-public", "kube-node-lease"}
        self._own = own_namespace
        self._pseudonyms: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def learn_pod(self, pod: Mapping[str, Any]) -> None:
        """Give the names in a pod their pseudonyms; pods of milligpu keep theirs."""
        meta = pod["metadata"]
        if meta["namespace"] == self._own:
            return
        self._learn("namespace", meta["namespace"])
        self._learn("pod", meta["name"])
        for owner in meta.get("ownerReferences", ()):
            self._learn("owner", owner["name"])
        for key in ("containers", "initContainers"):
            for container in pod["spec"].get(key, ()):
                self._learn("container", container["name"])

    def _learn(self, kind: str, name: str) -> None:
        if name not in self._kept and name not in self._pseudonyms:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            self._pseudonyms[name] = f"{kind}-{self._counts[kind]}"

    def keep_listed(self, found: Mapping[str, Any], kind: str) -> dict[str, Any]:
        """Return an object of a user with the listed fields only."""
        kept = _shaped(found, SHAPES[kind])
        meta = found.get("metadata", {})
        for key in ("labels", "annotations"):
            if plain := _plain(meta.get(key) or {}):
                kept["metadata"][key] = plain
        return kept

    def keep_own(self, found: Any) -> Any:
        """Return an object of milligpu without environment values and what Kubernetes keeps for itself."""
        match found:
            case dict():
                given = cast(dict[str, Any], found)
                kept = {key: value for key, value in given.items() if key not in _DROPPED and key != _LAST_APPLIED}
                if "value" in kept and "name" in kept:
                    kept["value"] = REDACTED
                return {key: self.keep_own(value) for key, value in kept.items()}
            case list():
                return [self.keep_own(each) for each in cast(list[Any], found)]
            case _:
                return found

    def text(self, text: str) -> str:
        """Replace names, and whatever looks like a secret, in any text."""
        for pattern in _SECRETS:
            text = pattern.sub(REDACTED, text)
        text = _NAMED_SECRET.sub(rf"\g<1>{REDACTED}", text)
        known = sorted((name for name in self._pseudonyms if len(name) >= _NAME_MIN), key=len, reverse=True)
        if not known:
            return text
        pattern = re.compile(rf"(?<![\w.-])(?:{'|'.join(map(re.escape, known))})(?![\w-])")
        return pattern.sub(lambda match: self._pseudonyms[match[0]], text)


def _shaped(found: Mapping[str, Any], shape: Shape) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, part in shape.items():
        if key not in found:
            continue
        value: Any = found[key]
        if part is True:
            kept[key] = value
        elif isinstance(value, list):
            kept[key] = [_shaped(each, part) for each in cast(list[dict[str, Any]], value)]
        else:
            kept[key] = _shaped(value, part)
    return kept


def _plain(texts: Mapping[str, str]) -> dict[str, str]:
    """Labels or annotations by which GPUs are requested or nodes described."""
    found = {key: text for key, text in texts.items() if key.startswith(_PLAIN_PREFIXES)}
    asked = re.compile("|".join(filter(None, (KNOWN.annotation_pattern, KNOWN.label_pattern))))
    return found | {key: text for key, text in texts.items() if asked.match(key)}
