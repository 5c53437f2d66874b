"""Tokens to a `Module`: declarations here, statements in `body`."""

from milligpu.softgpu.ptx.body import BodyParser
from milligpu.softgpu.ptx.cursor import Cursor
from milligpu.softgpu.ptx.errors import BadPtx, UnsupportedVersion
from milligpu.softgpu.ptx.syntax import Function, Module, Variable

# What the CUDA 13 compilers emit; a later major version may change what instructions mean.
NEWEST_MAJOR = 9
_LINKAGE = {".visible", ".extern", ".weak", ".common"}
_LIMITS = {".maxntid", ".reqntid", ".minnctapersm", ".maxnreg", ".maxnctapersm", ".reqnctapercluster", ".noreturn"}


def parse(text: str) -> Module:
    """Parse a module, or raise `BadPtx` with the line."""
    return _ModuleParser(Cursor(text)).parse()


class _ModuleParser:
    def __init__(self, cursor: Cursor) -> None:
        self._at = cursor
        self._module = Module()

    def parse(self) -> Module:
        at = self._at
        while at.kind != "end":
            match at.text:
                case ".version":
                    line = at.line
                    at.advance()
                    major, _, minor = at.take("number").partition(".")
                    self._module.version = (int(major), int(minor or 0))
                    if int(major) > NEWEST_MAJOR:
                        raise UnsupportedVersion(line, f"PTX {major}.{minor}, must be at most {NEWEST_MAJOR}.x")
                case ".target":
                    at.advance()
                    self._module.target = at.take("word")
                    at.skip_line()
                case ".address_size":
                    at.advance()
                    if at.take("number") != "64":
                        raise BadPtx(at.line, "only 64-bit addresses are supported")
                case ".file":
                    at.skip_line()
                case ".section":
                    at.skip_braces()
                case ".pragma":
                    at.skip_to(";")
                case ";":
                    at.advance()
                case _:
                    self._declaration()
        if self._module.version == (0, 0):
            raise BadPtx(at.line, "missing .version")
        return self._module

    def _declaration(self) -> None:
        at = self._at
        extern = weak = False
        while at.text in _LINKAGE:
            extern |= at.text == ".extern"
            weak |= at.text == ".weak"
            at.advance()
        if at.text in (".entry", ".func"):
            self._function(weak=weak)
        elif at.text in (".global", ".const", ".shared"):
            variable = at.variable(extern=extern)
            at.take(";")
            self._module.variables[variable.name] = variable
        elif at.text == ".alias":
            raise BadPtx(at.line, "unsupported directive .alias")
        else:
            raise BadPtx(at.line, f"unexpected {at.text}")

    def _function(self, *, weak: bool) -> None:
        at = self._at
        line, entry = at.line, at.text == ".entry"
        at.advance()
        results = self._parameters() if at.kind == "(" else ()
        name = at.take("word")
        parameters = self._parameters() if at.kind == "(" else ()
        max_threads = 0
        while at.text in _LIMITS:
            directive = at.text
            at.advance()
            product = 1
            while at.kind == "number":
                product *= at.number().value
                if not at.accept(","):
                    break
            if directive in (".maxntid", ".reqntid"):
                max_threads = product
        function = Function(line, name, entry, results, parameters, None, max_threads, weak)
        if not at.accept(";"):
            function.body = BodyParser(at).body()
        known = self._module.functions.get(name)
        if known is not None and known.body is not None and function.body is not None:
            # Of weak definitions, which come from several linked pieces, one is as good as the other.
            if not (known.weak or weak):
                raise BadPtx(line, f"{name} is defined twice")
            if weak:
                return
        if known is None or function.body is not None:
            self._module.functions[name] = function

    def _parameters(self) -> tuple[Variable, ...]:
        at = self._at
        at.take("(")
        found: list[Variable] = []
        while at.kind != ")":
            found.append(at.variable())
            if not at.accept(","):
                break
        at.take(")")
        return tuple(found)
