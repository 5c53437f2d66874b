"""The statements of a function."""

from milligpu.softgpu.ptx.cursor import Cursor
from milligpu.softgpu.ptx.errors import BadPtx
from milligpu.softgpu.ptx.syntax import (
    Address,
    Close,
    Group,
    Guard,
    Instruction,
    Label,
    Literal,
    Name,
    Negated,
    Open,
    Operand,
    Pair,
    Registers,
    Statement,
    Sum,
    Targets,
    Variable,
    Vector,
)

# More than any compiler emits; corrupt text must not make us allocate without bound.
_MOST_REGISTERS = 1 << 17


class BodyParser:
    """Reads one `{ … }`."""

    def __init__(self, cursor: Cursor) -> None:
        self._at = cursor
        self._found: list[Statement] = []

    def body(self) -> list[Statement]:
        """Return all statements up to the matching brace."""
        at = self._at
        at.take("{")
        depth = 1
        while depth:
            if at.kind == "end":
                raise BadPtx(at.line, "missing } at the end of a function")
            if at.accept("{"):
                depth += 1
                self._found.append(Open())
            elif at.accept("}"):
                depth -= 1
                if depth:
                    self._found.append(Close())
            else:
                self._statement()
        return self._found

    def _statement(self) -> None:
        at = self._at
        if at.kind == "dot":
            self._directive("")
        elif at.kind == "word" and at.peek().kind == ":":
            name, line = at.take("word"), at.line
            at.take(":")
            if at.text in (".branchtargets", ".callprototype"):
                self._directive(name)
            else:
                self._found.append(Label(line, name))
        elif not at.accept(";"):
            self._found.append(self._instruction())

    def _directive(self, label: str) -> None:
        at = self._at
        line = at.line
        match at.text:
            case ".reg":
                at.advance()
                self._registers(line)
            case ".loc" | ".file":
                at.skip_line()
            case ".pragma" | ".callprototype":
                at.skip_to(";")
            case ".branchtargets":
                at.advance()
                labels = [at.take("word")]
                while at.accept(","):
                    labels.append(at.take("word"))
                at.take(";")
                self._found.append(Targets(line, label, tuple(labels)))
            case _:
                self._found.append(self._variable())

    def _variable(self) -> Variable:
        variable = self._at.variable()
        self._at.take(";")
        return variable

    def _registers(self, line: int) -> None:
        at = self._at
        kind = at.type()
        names: list[str] = []
        while True:
            name = at.take("word")
            if at.accept("<"):
                count = at.number().value
                if count > _MOST_REGISTERS:
                    raise BadPtx(line, f"too many registers {name}")
                names += [f"{name}{index}" for index in range(count)]
                at.take(">")
            else:
                names.append(name)
            if not at.accept(","):
                break
        at.take(";")
        self._found.append(Registers(line, kind, tuple(names)))

    def _instruction(self) -> Instruction:
        at = self._at
        guard = None
        if at.accept("@"):
            negated = at.accept("!")
            guard = Guard(at.take("word"), negated)
        line = at.line
        opcode = at.take("word")
        modifiers: list[str] = []
        while at.kind == "dot":
            modifiers.append(at.text[1:])
            at.advance()
        operands: list[Operand] = []
        while at.kind != ";":
            operands.append(self._operand())
            if not at.accept(","):
                break
        at.take(";")
        return Instruction(line, opcode, tuple(modifiers), tuple(operands), guard)

    def _operand(self) -> Operand:
        at = self._at
        match at.kind:
            case "{":
                at.advance()
                items = [self._operand()]
                while at.accept(","):
                    items.append(self._operand())
                at.take("}")
                return Vector(tuple(items))
            case "[":
                return self._address()
            case "(":
                return self._group()
            case "!":
                at.advance()
                return Negated("!", self._name())
            case "-" if at.peek().kind == "word":
                at.advance()
                return Negated("-", self._name())
            case "-" | "number":
                sign = -1 if at.accept("-") else 1
                literal = at.number()
                return Literal(sign * literal.value, literal.form)
            case _:
                return self._named()

    def _named(self) -> Operand:
        at = self._at
        name = self._name()
        if at.accept("|"):
            return Pair(name, self._name())
        if at.accept("["):
            at.take("number")
            at.take("]")
            return name
        if at.kind in ("+", "-"):
            at.accept("+")
            return Sum(name, at.integer())
        return name

    def _name(self) -> Name:
        at = self._at
        text = at.take("word")
        if text[0] == "%" and at.kind == "dot":
            text += at.text
            at.advance()
        return Name(text)

    def _address(self) -> Address:
        at = self._at
        at.take("[")
        base: Name | Literal = at.number() if at.kind == "number" else self._name()
        offset = 0
        if at.kind in ("+", "-"):
            at.accept("+")
            offset = at.integer()
        at.take("]")
        return Address(base, offset)

    def _group(self) -> Group:
        at = self._at
        at.take("(")
        names: list[Name] = []
        while at.kind != ")":
            names.append(self._name())
            if not at.accept(","):
                break
        at.take(")")
        return Group(tuple(names))
