"""Values of the chart: merged from files and `--set`, and checked against the chart's schema."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

import yaml

from milligpu.model.errors import BadRequest

_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}
# What a schema can say; anything else must not be ignored silently.
_KEYWORDS = frozenset(
    {
        "$schema", "description", "type", "properties", "additionalProperties", "required", "items", "enum",
        "const", "pattern", "minLength", "minimum", "maximum", "not",
    }
)  # fmt: skip


# Other words, such as "on", are texts, whatever YAML says.
_TYPED = re.compile(r"(true|false|null|-?\d+(\.\d+)?)$|[\[{\"']")


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with changes on top; None removes one, as in Helm."""
    result = dict(base)
    for key, value in changes.items():
        before = result.get(key)
        if value is None:
            result.pop(key, None)
        elif isinstance(before, dict) and isinstance(value, dict):
            result[key] = merged(cast(dict[str, Any], before), cast(dict[str, Any], value))
        else:
            result[key] = value
    return result


def read_setting(text: str) -> dict[str, Any]:
    """Read `a.b=value`; a value such as `3`, `true` or `{key: text}` is YAML, any other a text, as in Helm."""
    path, found, value = text.partition("=")
    keys = path.split(".")
    if not found or not all(keys):
        raise BadRequest("--set", text, "NAME.NAME=VALUE")
    try:
        result: Any = yaml.safe_load(value) if _TYPED.match(value) else value
    except yaml.YAMLError:
        raise BadRequest(path, value, "a YAML value") from None
    for key in reversed(keys):
        result = {key: result}
    return result


def check_values(values: Any, schema: Mapping[str, Any]) -> None:
    """Refuse values that the schema does not allow; the error names the first."""
    for path, value, want in _problems("", values, schema):
        raise BadRequest(path or "values", value, want)


def _problems(path: str, value: Any, schema: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    assert schema.keys() <= _KEYWORDS, f"{path}: {schema.keys() - _KEYWORDS} in the schema is not checked"
    kinds = schema.get("type", [])
    names = [kinds] if isinstance(kinds, str) else cast(list[str], kinds)
    if names and not any(_is(value, name) for name in names):
        yield path, value, " or ".join(names)
        return
    if "enum" in schema and value not in schema["enum"]:
        yield path, value, " or ".join(map(str, schema["enum"]))
    if "const" in schema and value != schema["const"]:
        yield path, value, str(schema["const"])
    if "not" in schema and not any(_problems(path, value, schema["not"])):
        yield path, value, f"other than {schema['not'].get('const', schema['not'])}"
    match value:
        case str():
            yield from _text(path, value, schema)
        case bool():
            pass
        case int() | float():
            yield from _number(path, value, schema)
        case dict():
            yield from _object(path, cast(dict[str, Any], value), schema)
        case list():
            for index, each in enumerate(cast(list[Any], value)):
                yield from _problems(f"{path}[{index}]", each, schema.get("items", {}))
        case _:
            pass


def _is(value: Any, name: str) -> bool:
    return isinstance(value, _TYPES[name]) and not (isinstance(value, bool) and name in {"integer", "number"})


def _text(path: str, value: str, schema: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    if len(value) < schema.get("minLength", 0):
        yield path, value, f"at least {schema['minLength']} characters"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield path, value, f"a text that matches {schema['pattern']}"


def _number(path: str, value: float, schema: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    if value < schema.get("minimum", value):
        yield path, value, f"at least {schema['minimum']}"
    if value > schema.get("maximum", value):
        yield path, value, f"at most {schema['maximum']}"


def _object(path: str, value: dict[str, Any], schema: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    known: dict[str, Any] = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{path}.{name}".lstrip("."), None, "a value"
    for name, each in value.items():
        where = f"{path}.{name}".lstrip(".")
        if name in known:
            yield from _problems(where, each, known[name])
        elif schema.get("additionalProperties") is False:
            yield where, each, f"left out: known here are {', '.join(sorted(known))}"
        elif isinstance(others := schema.get("additionalProperties"), dict):
            yield from _problems(where, each, cast(dict[str, Any], others))
