"""Bitfusion: a number of GPUs and a part of each one's memory, as resources or in `bitfusion run …` itself.

Compute was never divided there: the part is what is guaranteed here, and the card is the ceiling.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from milligpu.dialects import pod as pods
from milligpu.dialects.settings import DEFAULTS, Settings
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
# In a command line that a shell gets: the program and its verb, and words as shells cut them.
_CALLED = re.compile(r"(?<!\S)(?:\S*/)?bitfusion\s+run(?!\S)")
_WORD = re.compile(r"(?:[^\s'\"]|'[^']*'|\"[^\"]*\")+")

# A plain number of memory is in MB, as its command line counts; one that no card could have is in bytes.
_PLAIN_MAX = 1_000_000
_PERCENT = WHOLE // 100


def speaks(words: pods.Words) -> str | None:
    """The first field in this dialect: a resource, or a command that starts `bitfusion run`."""
    found = (field for key, field in words.devices.items() if key.startswith(PREFIX))
    return next(found, None) or next((field for _, field, _ in _commands(words.commands)), None)


def read(pod: pods.Json, settings: Settings = DEFAULTS) -> PodRequest:  # noqa: ARG001 - nothing is left to settings
    """Each container's GPUs; its resources go before its command."""
    notes = pods.annotations(pod)
    if notes.get(MANAGE, "all").lower() not in _MANAGES:
        raise BadRequest(MANAGE, notes[MANAGE], "all, injection or none")
    host(pod)
    runs = {name: _run(field, words) for name, field, words in _commands(pods.words(pod).commands)}

    def share(name: str, wants: Mapping[str, object]) -> ShareRequest | None:
        asked = {key: value for key, value in wants.items() if key.startswith(PREFIX)}
        return _resources(name, asked) if asked else runs.get(name)

    return pods.request(pod, "bitfusion", share)


def host(pod: pods.Json) -> str | None:
    """The server that a filter names, which is a node here."""
    text = pods.annotations(pod).get(FILTER)
    if text is None:
        return None
    match = _HOST_FILTER.fullmatch(text.strip())
    if match is None:
        raise BadRequest(FILTER, text, "server.hostname=NAME", hint="say what the card must be like in other words")
    return match[1]


def wraps(pod: pods.Json) -> bool:
    """Whether the command is to run in a shell, as a prefixed one did: examples write it as one string."""
    return pods.annotations(pod).get(MANAGE, "").lower() in _WRAPS


def unwrap(container: Mapping[str, object]) -> dict[str, list[str]]:
    """A container's command and args without `bitfusion run …` in front: the GPUs are there when it starts.

    Images need not have that program, and one that has it would look for Bitfusion's servers.
    """
    parts = {key: [str(word) for word in _list(container.get(key))] for key in ("command", "args")}
    words = [word for part in parts.values() for word in part]
    at = next((at for at in range(len(words) - 1) if _is_program(words[at]) and words[at + 1] == "run"), None)
    if at is None:
        return {key: [_unwrapped_line(word) for word in part] for key, part in parts.items() if part}
    rest, first = words[at + 2 + _options(words[at + 2 :])[1] :], len(parts["command"])
    if at < first:  # nothing is left to the image: command and args are one
        return {"command": words[:at] + rest}
    return {"command": words[:first], "args": words[first:at] + rest} if first else {"args": words[:at] + rest}


def _unwrapped_line(line: str) -> str:
    """A command line for a shell, of which only that much is changed."""
    match = _CALLED.search(line)
    if match is None:
        return line
    rest = list(_WORD.finditer(line, match.end()))
    count = _options([word[0] for word in rest])[1]
    return line[: match.start()] + line[rest[count].start() if count < len(rest) else len(line) :]


def _resources(name: str, asked: Mapping[str, object]) -> ShareRequest | None:
    for key, value in asked.items():
        if key not in RESOURCES:
            raise BadRequest(pods.field(name, key), value, f"{AMOUNT}, {PERCENT} or {MEMORY}")
    amount = AMOUNT_OLD if AMOUNT_OLD in asked and AMOUNT not in asked else AMOUNT
    if amount not in asked:
        raise BadRequest(pods.field(name, AMOUNT), None, f"a number of GPUs beside {', '.join(sorted(asked))}")
    count = parse_whole(pods.field(name, amount), asked[amount], 0 if len(asked) == 1 else 1, GPUS_MAX)
    if count == 0:
        return None
    if MEMORY in asked and PERCENT in asked:
        raise BadRequest(pods.field(name, PERCENT), asked[PERCENT], f"either {PERCENT} or {MEMORY}, not both")
    if MEMORY in asked:
        return ShareRequest(count, mib=_memory(pods.field(name, MEMORY), asked[MEMORY]), limit=WHOLE)
    percent = parse_whole(pods.field(name, PERCENT), asked.get(PERCENT, 100), 1, 100)
    return _part(count, Milli(percent * _PERCENT))


def _part(count: int, milli: Milli) -> ShareRequest:
    return ShareRequest(count, milli, limit=None if milli == WHOLE else WHOLE)


def _memory(field: str, value: object) -> Mib:
    text = str(value)
    return parse_mib(field, text) if text.isdigit() and int(text) < _PLAIN_MAX else parse_size(field, text)


def _commands(containers: Mapping[str, pods.Json]) -> Iterator[tuple[str, str, list[str]]]:
    """Containers that call `bitfusion run`, with the field and the words after it."""
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
    """A command's words; a whole command line in one string, as shells get it, is cut as they cut it."""
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
    """What `bitfusion run -n 1 -p 0.5 …` asks for."""
    return _asked(field, _options(words)[0])


def _options(words: Sequence[str]) -> tuple[dict[str, str], int]:
    """The options of `run` that matter, and where they all end: behind `--` or at the first word that is none."""
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
        raise BadRequest(field, "bitfusion run", "the number of GPUs: bitfusion run -n 1 …")
    count = parse_whole(f"{field}: bitfusion run -n", asked[AMOUNT], 1, GPUS_MAX)
    if PERCENT in asked and MEMORY in asked:
        raise BadRequest(f"{field}: bitfusion run -m", asked[MEMORY], "either -p or -m, not both")
    if MEMORY in asked:
        return ShareRequest(count, mib=_memory(f"{field}: bitfusion run -m", asked[MEMORY]), limit=WHOLE)
    return _part(count, parse_fraction(f"{field}: bitfusion run -p", asked.get(PERCENT, "1")))
