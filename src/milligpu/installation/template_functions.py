"""The functions of Go's templates, of Sprig and of Helm that the chart calls."""

import hashlib
import json
import math
import re
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

import yaml

from milligpu.model.errors import BadFormat

_SEMVER = re.compile(r"v?(\d+)(?:\.(\d+))?(?:\.(\d+))?")
_CONSTRAINT = re.compile(r"\s*(>=|<=|>|<|=|)\s*(\S+)\s*")


def call(name: str, arguments: list[Any]) -> Any:
    """Call a function by its name in templates."""
    function = _FUNCTIONS.get(name)
    if function is None:
        raise BadFormat("template", f"the function {name} is not known")
    return function(*arguments)


def shown(value: Any) -> str:
    """A value as Go prints it."""
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case float() if value.is_integer():
            return str(int(value))
        case _:
            return str(value)


def compare_versions(constraint: str, version: str) -> bool:
    """Whether a version meets one constraint, such as `>=1.34.0-0`; vendors' suffixes do not matter."""
    match = _CONSTRAINT.fullmatch(constraint)
    if match is None:
        raise BadFormat("version constraint", repr(constraint))
    found, wanted = _numbers(version), _numbers(match[2])
    match match[1]:
        case ">=":
            return found >= wanted
        case "<=":
            return found <= wanted
        case ">":
            return found > wanted
        case "<":
            return found < wanted
        case _:
            return found == wanted


def _numbers(version: str) -> tuple[int, ...]:
    match = _SEMVER.match(version)
    if match is None:
        raise BadFormat("version", f"{version!r} is not MAJOR.MINOR.PATCH")
    return tuple(int(part or 0) for part in match.groups())


def _first_empty(*values: Any) -> Any:
    return next((each for each in values if not each), values[-1])


def _first_full(*values: Any) -> Any:
    return next((each for each in values if each), values[-1])


def _dict(*items: Any) -> dict[str, Any]:
    return dict(zip(items[::2], items[1::2], strict=True))


def _default(standard: Any, value: Any = None) -> Any:
    return value or standard


def _equal(first: Any, *others: Any) -> bool:
    return first in others


def _not_equal(first: Any, second: Any) -> bool:
    return first != second


def _not(value: Any) -> bool:
    return not value


def _list(*items: Any) -> list[Any]:
    return list(items)


def _indent(count: int, text: str) -> str:
    return "\n".join(" " * count + line for line in text.split("\n"))


def _nindent(count: int, text: str) -> str:
    return "\n" + _indent(count, text)


def _printf(text: str, *values: Any) -> str:
    parts = re.split(r"%[sdv]", text)
    return "".join(part + each for part, each in zip(parts, [*map(shown, values), ""], strict=True))


def _quote(value: Any) -> str:
    return '"' + shown(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _replace(pattern: str, text: str, to: str) -> str:
    return re.sub(pattern, to, text)


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _ternary(first: Any, second: Any, chosen: Any) -> Any:
    return first if chosen else second


def _dir(path: str) -> str:
    return str(PurePosixPath(path).parent)


def _product(*factors: int) -> int:
    return math.prod(factors)


def _to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def _to_yaml(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=False, width=10_000)
    return text.removesuffix("\n...\n").removesuffix("\n")


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "and": _first_empty,
    "or": _first_full,
    "not": _not,
    "eq": _equal,
    "ne": _not_equal,
    "default": _default,
    "dict": _dict,
    "dir": _dir,
    "list": _list,
    "mul": _product,
    "indent": _indent,
    "nindent": _nindent,
    "printf": _printf,
    "quote": _quote,
    "regexReplaceAll": _replace,
    "semverCompare": compare_versions,
    "sha256sum": _checksum,
    "ternary": _ternary,
    "toRawJson": _to_json,
    "toYaml": _to_yaml,
}
