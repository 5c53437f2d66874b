"""What a card must be like, beyond its size: one small language, and classes that name a set of it.

    memory>=16Gi, model in (V100, A100), ecc, nvlink, cc>=8.0

Terms are joined by commas and must all hold. Known: `memory>=SIZE`, `cc>=X.Y`, `model`/`uuid` with `=`, `!=`,
`in (...)`, `not in (...)`, and the flags `ecc`, `nvlink` and `numa`, which take no value.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from milligpu.model.errors import BadRequest
from milligpu.model.gpu import Capability, Gpu, model_matches, parse_capability, parse_uuid
from milligpu.model.labels import parse_label
from milligpu.model.reasons import Reason, Refusal
from milligpu.model.units import Mib, parse_size, show_mib


@dataclass(frozen=True, slots=True)
class Requirements:
    """All must hold; the empty set allows every card."""

    memory_min: Mib = Mib(0)
    capability_min: Capability = Capability(0, 0)
    ecc: bool = False
    nvlink: bool = False
    """All cards of the request have NVLink to each other."""
    numa: bool = False
    """All cards of the request are on one NUMA node."""
    models: tuple[str, ...] | None = None
    """One of these; None allows all."""
    models_not: tuple[str, ...] = ()
    uuids: tuple[str, ...] | None = None
    uuids_not: tuple[str, ...] = ()

    def refuse(self, node: str, gpu: Gpu) -> Refusal | None:
        """Why this card alone will not do. NVLink and NUMA concern several cards and are judged by placement."""

        def no(reason: Reason, wanted: int = 0, best: int = 0) -> Refusal:
            return Refusal(reason, node, gpu.uuid, wanted, best)

        if gpu.mib < self.memory_min:
            return no(Reason.MEMORY_SIZE, self.memory_min, gpu.mib)
        if gpu.capability < self.capability_min:
            return no(Reason.CAPABILITY)
        if self.ecc and not gpu.ecc:
            return no(Reason.NO_ECC)
        if not self._model_allowed(gpu.model):
            return no(Reason.MODEL_MISMATCH)
        if (self.uuids is not None and gpu.uuid not in self.uuids) or gpu.uuid in self.uuids_not:
            return no(Reason.UUID_MISMATCH)
        return None

    def _model_allowed(self, model: str) -> bool:
        if any(model_matches(name, model) for name in self.models_not):
            return False
        return self.models is None or any(model_matches(name, model) for name in self.models)

    def and_(self, other: "Requirements") -> "Requirements":
        """What satisfies both, as when a pod names a class and requirements of its own."""
        return Requirements(
            memory_min=max(self.memory_min, other.memory_min),
            capability_min=max(self.capability_min, other.capability_min),
            ecc=self.ecc or other.ecc,
            nvlink=self.nvlink or other.nvlink,
            numa=self.numa or other.numa,
            models=_both(self.models, other.models, model_matches),
            models_not=_union(self.models_not, other.models_not),
            uuids=_both(self.uuids, other.uuids, str.__eq__),
            uuids_not=_union(self.uuids_not, other.uuids_not),
        )

    def __str__(self) -> str:
        """The same in the language it is read from."""
        return ", ".join(_terms(self))


ANY = Requirements()
"""Every card will do."""


@dataclass(frozen=True, slots=True)
class GpuClass:
    """A name that an admin gives to requirements: a container asks `gpu-gold: 1` and gets a card that is gold."""

    name: str
    requirements: Requirements

    @property
    def resource(self) -> str:
        """The resource name of the talk that asked for classes."""
        return f"gpu-{self.name}"


def parse_class(field: str, name: object, requirements: object) -> GpuClass:
    """Read a class's definition."""
    return GpuClass(parse_label(field, name), parse_requirements(f"{field}[{name}]", requirements))


# A requirement is a line that a person writes; longer ones are mistakes or attacks.
_TEXT_MAX = 2000
_NAMES_MAX = 64

_TERM = re.compile(
    r"""\s*(?P<key>[a-z]+)\s*
        (?: (?P<cmp>>=|!=|==?|<=|<|>)\s*(?P<value>[^\s,()]+)
          | (?P<set>(?:not\s+)?in)\s*\((?P<names>[^()]*)\)
        )?\s*""",
    re.VERBOSE,
)
_FORMS = {
    "memory": "memory>=SIZE",
    "cc": "cc>=X.Y",
    "ecc": "ecc",
    "nvlink": "nvlink",
    "numa": "numa",
    "model": "model=NAME, model!=NAME, model in (A, B) or model not in (A, B)",
    "uuid": "uuid=GPU-…, uuid!=GPU-…, uuid in (…) or uuid not in (…)",
}


def parse_requirements(field: str, text: object) -> Requirements:
    """Read the language; an unknown word is refused, because "ecccc" must not mean "no requirement"."""
    if not isinstance(text, str) or not text.strip() or len(text) > _TEXT_MAX:
        raise BadRequest(field, text, f"requirements such as memory>=16Gi, ecc (1 to {_TEXT_MAX} characters)")
    result = ANY
    seen: set[str] = set()
    for term in _split(text):
        match = _TERM.fullmatch(term)
        key = match["key"] if match else ""
        if match is None or key not in _FORMS:
            raise BadRequest(field, term.strip(), f"one of {', '.join(_FORMS)}", hint=f"write e.g. {_EXAMPLE}")
        form = f"{key} {_sense(match)}"
        if form in seen:
            raise BadRequest(field, term.strip(), f"{key} once", hint="put several names into model in (A, B)")
        seen.add(form)
        result = result.and_(_read(field, term.strip(), match))
    return result


_EXAMPLE = "memory>=16Gi, model in (V100, A100), ecc, nvlink, cc>=8.0"


def _split(text: str) -> Iterator[str]:
    """Cut at commas outside parentheses."""
    start = depth = 0
    for at, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]


def _sense(match: re.Match[str]) -> str:
    negative = match["cmp"] == "!=" or (match["set"] or "").startswith("not")
    return "not" if negative else "is"


def _read(field: str, term: str, match: re.Match[str]) -> Requirements:
    key, compare, value = match["key"], match["cmp"], match["value"]

    def bad() -> BadRequest:
        return BadRequest(field, term, _FORMS[key])

    if key in {"ecc", "nvlink", "numa"}:
        if compare or match["set"]:
            raise bad()
        return Requirements(ecc=key == "ecc", nvlink=key == "nvlink", numa=key == "numa")
    if key in {"memory", "cc"}:
        if compare != ">=":
            raise bad()
        if key == "memory":
            return replace(ANY, memory_min=parse_size(f"{field}: memory", value))
        return replace(ANY, capability_min=parse_capability(f"{field}: cc", value))
    if compare in {"=", "==", "!="}:
        names = (value,)
    elif match["set"]:
        names = tuple(name.strip() for name in match["names"].split(","))
    else:
        raise bad()
    check: Callable[[str, object], str] = parse_uuid if key == "uuid" else parse_model
    names = tuple(check(f"{field}: {key}", name) for name in names)
    if len(names) > _NAMES_MAX:
        raise BadRequest(field, f"{len(names)} names", f"at most {_NAMES_MAX}")
    if key == "model":
        return Requirements(models_not=names) if _sense(match) == "not" else Requirements(models=names)
    return Requirements(uuids_not=names) if _sense(match) == "not" else Requirements(uuids=names)


_MODEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 ._/-]{0,62}[A-Za-z0-9])?")


def parse_model(field: str, value: object) -> str:
    """Read a model's name as people write it."""
    if not (isinstance(value, str) and _MODEL.fullmatch(value)):
        raise BadRequest(field, value, "a model's name such as V100 or A100-SXM4-80GB")
    return value


def _both(
    ours: tuple[str, ...] | None, theirs: tuple[str, ...] | None, covers: Callable[[str, str], bool]
) -> tuple[str, ...] | None:
    """The names that satisfy both lists; of V100 and V100-SXM2 the narrower one stays."""
    if ours is None or theirs is None:
        return theirs if ours is None else ours
    narrow = tuple(name for name in ours if any(covers(wide, name) for wide in theirs))
    return _union(narrow, tuple(name for name in theirs if any(covers(wide, name) for wide in ours)))


def _union(ours: tuple[str, ...], theirs: tuple[str, ...]) -> tuple[str, ...]:
    return ours + tuple(name for name in theirs if name not in ours)


def _terms(wants: Requirements) -> Iterator[str]:
    if wants.memory_min:
        yield f"memory>={show_mib(wants.memory_min)}"
    if wants.capability_min > (0, 0):
        yield f"cc>={wants.capability_min}"
    for flag in ("ecc", "nvlink", "numa"):
        if getattr(wants, flag):
            yield flag
    for key, yes, no in (("model", wants.models, wants.models_not), ("uuid", wants.uuids, wants.uuids_not)):
        if yes is not None:
            yield f"{key} in ({', '.join(yes)})"
        if no:
            yield f"{key} not in ({', '.join(no)})"
