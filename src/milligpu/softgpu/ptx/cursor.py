"""A position in the tokens, and readers for the small parts that occur everywhere."""

from milligpu.softgpu.ptx.errors import BadPtx
from milligpu.softgpu.ptx.lexer import Token, tokens
from milligpu.softgpu.ptx.syntax import Literal, Name, Variable
from milligpu.softgpu.ptx.types import TYPES, Type

_SPACES = {".global", ".const", ".shared", ".local", ".param", ".reg"}
# The largest static variable that a driver accepts; it also keeps a typo from becoming a huge allocation.
_LARGEST_VARIABLE = 1 << 31


class Cursor:
    """The current position; every reader either moves on or raises an error with the line."""

    def __init__(self, text: str) -> None:
        self._tokens = tokens(text)
        self._index = 0
        self.kind, self.text, self.line = self._tokens[0]

    def advance(self) -> None:
        """Go to the next token; at the end, stay."""
        if self._index + 1 < len(self._tokens):
            self._index += 1
        self.kind, self.text, self.line = self._tokens[self._index]

    def peek(self, ahead: int = 1) -> Token:
        """Return a token further on."""
        return self._tokens[min(self._index + ahead, len(self._tokens) - 1)]

    def accept(self, kind: str) -> bool:
        """Skip this token if it is next, and say whether it was."""
        if self.kind != kind:
            return False
        self.advance()
        return True

    def take(self, kind: str) -> str:
        """Skip this token, or raise an error."""
        if self.kind != kind:
            raise BadPtx(self.line, f"expected {kind}, found {self.text}")
        text = self.text
        self.advance()
        return text

    def skip_line(self) -> None:
        """Skip the rest of this line."""
        line = self.line
        while self.line == line and self.kind != "end":
            self.advance()

    def skip_to(self, kind: str) -> None:
        """Skip everything up to and including this token."""
        while self.kind not in (kind, "end"):
            self.advance()
        self.take(kind)

    def skip_braces(self) -> None:
        """Skip a `{ … }` that we do not need, such as debug information."""
        self.skip_to("{")
        self.skip_to("}")

    def type(self) -> Type:
        """Read a scalar type such as `.b32`."""
        found = TYPES.get(self.text[1:]) if self.kind == "dot" else None
        if found is None:
            raise BadPtx(self.line, f"unknown type {self.text}")
        self.advance()
        return found

    def number(self) -> Literal:
        """Read an unsigned constant."""
        text = self.take("number").rstrip("U")
        if text[:2] in ("0f", "0F"):
            return Literal(int(text[2:], 16), "f32")
        if text[:2] in ("0d", "0D"):
            return Literal(int(text[2:], 16), "f64")
        if "." in text:
            raise BadPtx(self.line, f"unexpected {text}")
        if len(text) > 1 and text.isdigit() and text[0] == "0":
            if not set(text) <= set("01234567"):
                raise BadPtx(self.line, f"bad octal number {text}")
            return Literal(int(text, 8))
        return Literal(int(text, 0))

    def integer(self) -> int:
        """Read a constant with its sign."""
        sign = -1 if self.accept("-") else 1
        return sign * self.number().value

    def variable(self, *, extern: bool = False) -> Variable:
        """Read a declaration in one of the state spaces, with its initial values."""
        line = self.line
        if self.text not in _SPACES:
            raise BadPtx(line, f"expected a state space, found {self.text}")
        space = self.text[1:]
        self.advance()
        align, lanes = 0, 1
        while self.text in (".align", ".ptr", ".attribute", ".v2", ".v4", *_SPACES):
            word = self.text
            self.advance()
            if word == ".align":
                align = self.number().value
            elif word == ".attribute":
                self.skip_to(")")
            elif word in (".v2", ".v4"):
                lanes = int(word[2:])
        kind = self.type()
        while self.text in (".align", ".ptr", *_SPACES):
            if self.text == ".align":
                self.advance()
                self.number()
            else:
                self.advance()
        name = self.take("word")
        count, array = lanes, False
        while self.accept("["):
            array = True
            count *= self.number().value if self.kind == "number" else 0
            self.take("]")
        if extern and array:
            count = 0
        if count * kind.bytes > _LARGEST_VARIABLE:
            raise BadPtx(line, f"{name} is too large")
        align = align or kind.bytes * lanes
        if align & (align - 1) or align > 4096:
            raise BadPtx(line, f"{name}: bad alignment {align}")
        values = self._initial() if self.accept("=") else ()
        return Variable(line, space, kind, name, count * kind.bytes, align, values)

    def _initial(self) -> tuple[Literal | Name, ...]:
        if not self.accept("{"):
            return (self._value(),)
        found: list[Literal | Name] = []
        while self.kind != "}":
            if self.kind == "{":
                found += self._initial()
            else:
                found.append(self._value())
            if not self.accept(","):
                break
        self.take("}")
        return tuple(found)

    def _value(self) -> Literal | Name:
        if self.kind == "word":
            if self.text == "generic":
                self.advance()
                self.take("(")
                name = self.take("word")
                self.take(")")
                return Name(name)
            return Name(self.take("word"))
        sign = -1 if self.accept("-") else 1
        literal = self.number()
        return Literal(sign * literal.value, literal.form)
