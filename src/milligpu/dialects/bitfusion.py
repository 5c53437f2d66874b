"""Bitfusion: a number of GPUs and a fraction of each one's memory, as resources or in `bitfusion run …`.

Bitfusion does not divide compute. Here the fraction is the share, and the limit is the whole GPU.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from milligpu.dialects import pod as pods
from milligpu.dialects.dialect import Dialect, DialectForm
from milligpu.dialects.settings import DEFAULTS, DialectSettings
from milligpu.model import names
from milligpu.model.errors import BadRequest
from milligpu.model.request import PodRequest, ShareRequest
from milligpu.model.units import GPUS_MAX, WHOLE, Mib, Milli, parse_fraction, parse_mib, parse_size, parse_whole

PREFIX = "bitfusion.io/"
AMOUNT, AMOUNT_OLD = PREFIX + "gpu-amount", PREFIX + "gpu-num"
PERCENT, MEMORY = PREFIX + "gpu-percent", PREFIX + "gpu-memory"
RESOURCES = frozenset({AMOUNT, AMOUNT_OLD, PERCENT, MEMORY})

MANAGE = "auto-management/bitfusion"
FILTER = "bitfusion-client/filter"
_WRAPS = frozenset({"all", "y", "yes", "true", "on"})
_MANAGES = _WRAPS | {"injection", "none"}
_HOST_FILTER = re.compile(r"server\.hostname=([A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?)")
# In a command line for a shell: the program with its verb, and single words as a shell splits them.
_CALLED = re.compile(r"(?<!\S)(?:\S*/)?bitfusion\s+run(?!\S)")
_WORD = re.compile(r"(?:[^\s'\"]|'[^']*'|\"[^\"]*\")+")

# A plain number is in MB, as in Bitfusion's command line; one that is larger than any GPU's memory is in bytes.
_PLAIN_MAX = 1_000_000
_PERCENT = WHOLE // 100


def first_field(fields: pods.PodFields) -> str | None:
    """Return the first resource of this dialect, or the first command that calls `bitfusion run`."""
    found = (field for key, field in fields.devices.items() if key.startswith(PREFIX))
    return next(found, None) or next((field for _, field, _ in _commands(fields.commands)), None)


def read_request(pod: pods.Json, settings: DialectSettings = DEFAULTS) -> PodRequest:  # noqa: ARG001 - nothing is left to settings
    """Read each container's GPUs from its resources, or else from its command."""
    notes = pods.annotations(pod)
    if notes.get(MANAGE, "all").lower() not in _MANAGES:
        raise BadRequest(MANAGE, notes[MANAGE], "all, injection or none")
    host(pod)
    runs = {name: _run(field, words) for name, field, words in _commands(pods.pod_fields(pod).commands)}

    def share(name: str, devices: Mapping[str, object]) -> ShareRequest | None:
        asked = {key: value for key, value in devices.items() if key.startswith(PREFIX)}
        return _resources(name, asked) if asked else runs.get(name)

    return pods.make_request(pod, "bitfusion", share)


def host(pod: pods.Json) -> str | None:
    """Return the server that a filter names; here it is the name of a node."""
    text = pods.annotations(pod).get(FILTER)
    if text is None:
        return None
    match = _HOST_FILTER.fullmatch(text.strip())
    if match is None:
        raise BadRequest(
            FILTER, text, "server.hostname=NAME", hint=f"describe the GPU with {names.REQUIRE} instead"
        )
    return match[1]


def rewrite(result: dict[str, Any], pod: pods.Json, shares: Mapping[str, ShareRequest]) -> None:
    """Select the node that a filter names, and run commands in a shell, without `bitfusion run`."""
    spec = cast("dict[str, Any]", result["spec"])
    node = host(pod)
    if node is not None:
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), "kubernetes.io/hostname": node}
    in_shell = pods.annotations(pod).get(MANAGE, "").lower() in _WRAPS
    for container in pods.changeable_containers(result):
        if container["name"] not in shares:
            continue
        run = _unwrapped(container)
        for key in ("command", "args"):
            container.pop(key, None)
        container.update(run)
        if in_shell and run.get("command"):
            line = " ".join(word for word in run["command"] if word.lower() not in {"/bin/bash", "-c"})
            container["command"] = ["/bin/bash", "-c", line]


def _unwrapped(container: Mapping[str, object]) -> dict[str, list[str]]:
    """Return command and args without `bitfusion run …`, because the GPUs are attached when the container starts.

    An image need not have that program; if it has, the program would look for Bitfusion's servers.
    """
    where = f"containers[{container['name']}]"
    parts = {
        key: [str(word) for word in pods.sequence(f"{where}.{key}", container.get(key))]
        for key in ("command", "args")
    }
    words = [word for part in parts.values() for word in part]
    at = next((at for at in range(len(words) - 1) if _is_program(words[at]) and words[at + 1] == "run"), None)
    if at is None:
        return {key: [_unwrapped_line(word) for word in part] for key, part in parts.items() if part}
    rest, first = words[at + 2 + _options(words[at + 2 :])[1] :], len(parts["command"])
    if at < first:  # the command is replaced, so args belong to it
        return {"command": words[:at] + rest}
    return {"command": words[:first], "args": words[first:at] + rest} if first else {"args": words[:at] + rest}


def _unwrapped_line(line: str) -> str:
    """Return a command line for a shell without `bitfusion run …`; the rest stays as it is written."""
    match = _CALLED.search(line)
    if match is None:
        return line
    rest = list(_WORD.finditer(line, match.end()))
    count = _options([word[0] for word in rest])[1]
    return line[: match.start()] + line[rest[count].start() if count < len(rest) else len(line) :]


def _resources(name: str, asked: Mapping[str, object]) -> ShareRequest | None:
    for key, value in asked.items():
        if key not in RESOURCES:
            raise BadRequest(pods.limit_field(name, key), value, f"written as {AMOUNT}, {PERCENT} or {MEMORY}")
    amount = AMOUNT_OLD if AMOUNT_OLD in asked and AMOUNT not in asked else AMOUNT
    if amount not in asked:
        raise BadRequest(
            pods.limit_field(name, AMOUNT), None, f"the number of GPUs, together with {', '.join(sorted(asked))}"
        )
    count = parse_whole(pods.limit_field(name, amount), asked[amount], 0 if len(asked) == 1 else 1, GPUS_MAX)
    if count == 0:
        return None
    if MEMORY in asked and PERCENT in asked:
        raise BadRequest(pods.limit_field(name, PERCENT), asked[PERCENT], f"left out where {MEMORY} is set")
    if MEMORY in asked:
        return ShareRequest(count, mib=_memory(pods.limit_field(name, MEMORY), asked[MEMORY]), limit=WHOLE)
    percent = parse_whole(pods.limit_field(name, PERCENT), asked.get(PERCENT, 100), 1, 100)
    return _part(count, Milli(percent * _PERCENT))


def _part(count: int, milli: Milli) -> ShareRequest:
    return ShareRequest(count, milli, limit=None if milli == WHOLE else WHOLE)


def _memory(field: str, value: object) -> Mib:
    text = str(value)
    return parse_mib(field, text) if text.isdigit() and int(text) < _PLAIN_MAX else parse_size(field, text)


def _commands(containers: Mapping[str, pods.Json]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield each container that calls `bitfusion run`, the field, and the words after it."""
    for name, container in containers.items():
        if "bitfusion" not in f"{container.get('command')}{container.get('args')}":
            continue
        found = _after_run([*_words(container.get("command")), *_words(container.get("args"))])
        if found is not None:
            key = "command" if _after_run(_words(container.get("command"))) is not None else "args"
            yield name, f"containers[{name}].{key}", found


def _list(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _is_program(word: str) -> bool:
    return word.rsplit("/", 1)[-1] == "bitfusion"


def _words(value: object) -> list[str]:
    """Return a command's words; a command line in one string is split as a shell splits it."""
    words: list[str] = []
    for item in _list(value):
        text = str(item)
        try:
            words += shlex.split(text, comments=False) if re.search(r"\s", text) else [text]
        except ValueError:
            words += text.split()
    return words


def _after_run(words: list[str]) -> list[str] | None:
    for at, word in enumerate(words[:-1]):
        if _is_program(word) and words[at + 1] == "run":
            return words[at + 2 :]
    return None


_OPTIONS = {
    "-n": AMOUNT,
    "--num_gpus": AMOUNT,
    "--num-gpus": AMOUNT,
    "-p": PERCENT,
    "--partial": PERCENT,
    "-m": MEMORY,
    "--memory": MEMORY,
    "--partial_memory": MEMORY,
}


def _run(field: str, words: list[str]) -> ShareRequest:
    """Read the options of `bitfusion run -n 1 -p 0.5 …`."""
    return _asked(field, _options(words)[0])


def _options(words: Sequence[str]) -> tuple[dict[str, str], int]:
    """Return the options of `run` that request GPUs, and the index of the first word after all options."""
    asked: dict[str, str] = {}
    at = 0
    while at < len(words) and words[at] != "--" and words[at].startswith("-"):
        name, _, value = words[at].partition("=")
        if name[:2] in _OPTIONS and not name.startswith("--") and len(name) > 2:
            name, value = name[:2], name[2:]
        if not value:
            at += 1
            value = words[at] if at < len(words) else ""
        if name in _OPTIONS:
            asked[_OPTIONS[name]] = value
        at += 1
    return asked, at + (at < len(words) and words[at] == "--")


def _asked(field: str, asked: Mapping[str, str]) -> ShareRequest:
    if AMOUNT not in asked:
        raise BadRequest(f"{field}: bitfusion run -n", None, "the number of GPUs, as in bitfusion run -n 1 …")
    count = parse_whole(f"{field}: bitfusion run -n", asked[AMOUNT], 1, GPUS_MAX)
    if PERCENT in asked and MEMORY in asked:
        raise BadRequest(f"{field}: bitfusion run -m", asked[MEMORY], "left out where -p is set")
    if MEMORY in asked:
        return ShareRequest(count, mib=_memory(f"{field}: bitfusion run -m", asked[MEMORY]), limit=WHOLE)
    return _part(count, parse_fraction(f"{field}: bitfusion run -p", asked.get(PERCENT, "1")))


DIALECT = Dialect(
    "bitfusion",
    first_field,
    read_request,
    source="[Bitfusion on Kubernetes](https://github.com/vmware-archive/bitfusion-with-kubernetes-integration)",
    forms=(
        DialectForm(
            "`bitfusion.io/gpu-amount` (older: `gpu-num`), `gpu-percent`, `gpu-memory`",
            "That many GPUs, and a fraction or memory (plain numbers in MiB) of each, without a limit on compute.",
        ),
        DialectForm(
            "`bitfusion run -n 1 -p 0.5 …` (or `-m 4096`) in command or args",
            "The same. Admission removes `bitfusion run …`: the GPUs are attached without it.",
        ),
        DialectForm(
            "annotation `auto-management/bitfusion`",
            "With `all`, the command runs in a shell, as Bitfusion's webhook runs it.",
        ),
        DialectForm("annotation `bitfusion-client/filter: server.hostname=NAME`", "The node of that name."),
    ),
    rewrite=rewrite,
    resources=RESOURCES,
    resource_patterns=(r"bitfusion\.io/",),
    command_words=("bitfusion",),
)
