"""Go's text templates, as far as the chart uses them, for people who install without Helm.

What is not known here is refused by name. A test renders the chart with Helm, too, and compares.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

import yaml

from milligpu.installation.template_functions import call, shown
from milligpu.model.errors import BadFormat

Scope: TypeAlias = dict[str, Any]
"""Variables by name; `$` is the root."""

_ACTION = re.compile(r"\{\{(-\s)?\s*(.*?)\s*(\s-)?\}\}", re.DOTALL)
_WORD = re.compile(r"""\s*(?:("(?:[^"\\]|\\.)*"|`[^`]*`)|(:=|[|(),])|(-?\d+(?:\.\d+)?)|([$.\w]+))""")


class _Block:
    """A part between an action and its `end`: what is printed if the condition holds, and what if not."""

    def __init__(self, words: str) -> None:
        self.words = words
        self.body: list[_Node] = []
        self.otherwise: list[_Node] = []


_Node: TypeAlias = str | _Block
"""Text as it is, or an action; an action without a body prints its value."""


class Templates:
    """The templates of a chart: named parts, and a way to print a text with them."""

    def __init__(self) -> None:
        self._defined: dict[str, list[_Node]] = {}

    def parse(self, name: str, text: str) -> "list[_Node]":
        """Read a file; the parts that it defines can be included from all files."""
        return _Parser(name, self._defined).parse(text)

    def render(self, nodes: "Sequence[_Node]", root: Mapping[str, Any]) -> str:
        """Print a file that was read."""
        return "".join(self._print(nodes, root, {"$": root}))

    def _print(self, nodes: "Sequence[_Node]", dot: Any, scope: Scope) -> Iterator[str]:
        for node in nodes:
            if isinstance(node, str):
                yield node
                continue
            keyword, _, rest = node.words.partition(" ")
            match keyword:
                case "if":
                    chosen = node.body if self._value(rest, dot, scope) else node.otherwise
                    yield from self._print(chosen, dot, dict(scope))
                case "with":
                    value = self._value(rest, dot, scope)
                    inner = value if value else dot
                    yield from self._print(node.body if value else node.otherwise, inner, dict(scope))
                case "range":
                    yield from self._repeat(node, rest, dot, scope)
                case _:
                    yield self._action(node.words, dot, scope)

    def _repeat(self, node: _Block, words: str, dot: Any, scope: Scope) -> Iterator[str]:
        names, found, rest = words.rpartition(":=")
        value: Any = self._value(rest if found else words, dot, scope)
        mapping = isinstance(value, dict)
        pairs = sorted(cast(dict[str, Any], value).items()) if mapping else list(enumerate(value or ()))
        variables = [name.strip() for name in names.split(",")] if found else []
        for key, each in pairs:
            inner = dict(scope)
            if variables:
                inner.update(zip(variables, (each,) if len(variables) == 1 else (key, each), strict=True))
            yield from self._print(node.body, each, inner)
        if not pairs:
            yield from self._print(node.otherwise, dot, dict(scope))

    def _action(self, words: str, dot: Any, scope: Scope) -> str:
        if match := re.match(r"(\$\w+)\s*:=\s*(.*)", words, re.DOTALL):
            scope[match[1]] = self._value(match[2], dot, scope)
            return ""
        return shown(self._value(words, dot, scope))

    def _value(self, words: str, dot: Any, scope: Scope) -> Any:
        tokens = _tokens(words)
        value = self._pipeline(tokens, dot, scope)
        if tokens:
            raise BadFormat("template", f"{words!r}: {tokens[0]!r} is not expected")
        return value

    def _pipeline(self, tokens: list[str], dot: Any, scope: Scope) -> Any:
        value: Any = None
        piped: list[Any] = []
        while True:
            value = self._command(tokens, dot, scope, piped)
            if not tokens or tokens[0] != "|":
                return value
            tokens.pop(0)
            piped = [value]

    def _command(self, tokens: list[str], dot: Any, scope: Scope, piped: list[Any]) -> Any:
        first = tokens.pop(0)
        if first.isidentifier() and first not in {"true", "false", "nil"}:
            arguments = self._operands(tokens, dot, scope) + piped
            return self._call(first, arguments)
        value = self._operand(first, tokens, dot, scope)
        if callable(value):
            return cast(Callable[..., Any], value)(*self._operands(tokens, dot, scope), *piped)
        return value

    def _operands(self, tokens: list[str], dot: Any, scope: Scope) -> list[Any]:
        found: list[Any] = []
        while tokens and tokens[0] not in {"|", ")"}:
            found.append(self._operand(tokens.pop(0), tokens, dot, scope))
        return found

    def _operand(self, token: str, tokens: list[str], dot: Any, scope: Scope) -> Any:
        if token == "(":
            value = self._pipeline(tokens, dot, scope)
            tokens.pop(0)
            if tokens and tokens[0].startswith(".") and len(tokens[0]) > 1:
                return _field(value, tokens.pop(0))
            return value
        if token[0] in '"`':
            return yaml.safe_load(token) if token[0] == '"' else token[1:-1]
        if token in {"true", "false", "nil"}:
            return {"true": True, "false": False}.get(token)
        if token[0] == ".":
            return _field(dot, token)
        if token[0] == "$":
            name, _, rest = token.partition(".")
            return _field(scope[name], f".{rest}")
        return float(token) if "." in token else int(token)

    def _call(self, name: str, arguments: list[Any]) -> Any:
        match name:
            case "include":
                part: Any = self._defined[arguments[0]]
                return "".join(self._print(part, arguments[1], {"$": arguments[1]}))
            case "tpl":
                return self.render(self.parse("tpl", arguments[0]), arguments[1])
            case _:
                return call(name, arguments)


class _Parser:
    """Reads one text into nodes."""

    def __init__(self, name: str, defined: "dict[str, list[_Node]]") -> None:
        self._name = name
        self._defined = defined

    def parse(self, text: str) -> "list[_Node]":
        top = _Block("")
        # The innermost block is the last; its text goes where the second says.
        stack: list[tuple[_Block, list[_Node]]] = [(top, top.body)]
        for part in _parts(text):
            if isinstance(part, str):
                stack[-1][1].append(part)
                continue
            words = part.words
            keyword = words.partition(" ")[0]
            if keyword in {"if", "with", "range", "define"}:
                stack[-1][1].append(part)
                stack.append((part, part.body))
            elif keyword == "else":
                block, _ = stack.pop()
                if words != "else":  # `else if` is an `if` inside, which ends with the same `end`
                    inner = _Block(words.removeprefix("else").strip())
                    block.otherwise.append(inner)
                    stack.append((inner, inner.body))
                else:
                    stack.append((block, block.otherwise))
            elif keyword == "end":
                block, _ = stack.pop()
                if block.words.startswith("define"):
                    self._defined[str(yaml.safe_load(block.words.partition(" ")[2]))] = block.body
                    stack[-1][1].remove(block)
            else:
                stack[-1][1].append(part)
        if len(stack) != 1:
            raise BadFormat(self._name, "an action has no end")
        return top.body


def _parts(text: str) -> Iterator[_Node]:
    at, trim = 0, False
    for match in _ACTION.finditer(text):
        before = text[at : match.start()]
        before = before.lstrip() if trim else before
        yield before.rstrip() if match[1] else before
        at, trim = match.end(), bool(match[3])
        if not match[2].startswith("/*"):
            yield _Block(match[2])
    rest = text[at:]
    yield rest.lstrip() if trim else rest


def _tokens(words: str) -> list[str]:
    found: list[str] = []
    at = 0
    while at < len(words.rstrip()):
        match = _WORD.match(words, at)
        if match is None:
            raise BadFormat("template", f"{words!r} cannot be read")
        found.append(next(group for group in match.groups() if group is not None))
        at = match.end()
    return found


def _field(value: Any, path: str) -> Any:
    for name in filter(None, path.split(".")):
        value = cast(Mapping[str, Any], value).get(name) if isinstance(value, Mapping) else None
    return value
