"""Requirements on GPUs beyond their size: one small language.

    memory>=16Gi, model in (V100, A100), ecc, nvlink, cc>=8.0

Terms are joined by commas and must all hold. Known: `memory>=SIZE`, `cc>=X.Y`, `driver>=VERSION`, `cuda>=VERSION`,
`model`/`uuid` with `=`, `!=`, `in (...)`, `not in (...)`, and the flags `ecc`, `nvlink` and `numa`, which take no
value.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from milligpu.model.errors import BadRequest
from milligpu.model.gpu import ComputeCapability, Gpu, model_matches, parse_capability, parse_uuid
from milligpu.model.reasons import Reason, Refusal
from milligpu.model.units import Mib, parse_size_with_unit, show_mib
from milligpu.model.versions import DottedVersion, parse_version


@dataclass(frozen=True, slots=True)
class Requirements:
    """All must hold; the empty set allows every GPU."""

    memory_min: Mib = Mib(0)
    capability_min: ComputeCapability = ComputeCapability(0, 0)
    driver_min: DottedVersion | None = None
    cuda_min: DottedVersion | None = None
    ecc: bool = False
    nvlink: bool = False
    """All GPUs of the request have NVLink to each other."""
    numa: bool = False
    """All GPUs of the request are on one NUMA node."""
    models: tuple[str, ...] | None = None
    """One of these; None allows all."""
    models_not: tuple[str, ...] = ()
    uuids: tuple[str, ...] | None = None
    uuids_not: tuple[str, ...] = ()

    def refuse(self, node: str, gpu: Gpu) -> Refusal | None:
        """Return why this GPU alone does not fit. Placement checks NVLink and NUMA, which concern several GPUs."""

        def no(reason: Reason, wanted: int = 0, best: int = 0, message: str = "") -> Refusal:
            return Refusal(reason, node, gpu.uuid, wanted, best, message=message)

        if gpu.mib < self.memory_min:
            return no(Reason.MEMORY_SIZE, self.memory_min, gpu.mib)
        if gpu.capability < self.capability_min:
            return no(Reason.CAPABILITY, message=f"has {gpu.capability}, wanted cc>={self.capability_min}")
        for name, wanted, found, too_old in (
            ("driver", self.driver_min, gpu.driver, Reason.DRIVER),
            ("cuda", self.cuda_min, gpu.cuda, Reason.CUDA),
        ):
            if wanted is not None and found is None:
                return no(Reason.DRIVER_UNKNOWN, message=f"reports no version, wanted {name}>={wanted}")
            if wanted is not None and found is not None and found < wanted:
                return no(too_old, message=f"has {found}, wanted {name}>={wanted}")
        if self.ecc and not gpu.ecc:
            return no(Reason.NO_ECC)
        if not self._model_allowed(gpu.model):
            return no(Reason.MODEL_MISMATCH, message=f"is {gpu.model}")
        if (self.uuids is not None and gpu.uuid not in self.uuids) or gpu.uuid in self.uuids_not:
            return no(Reason.UUID_MISMATCH)
        return None

    def _model_allowed(self, model: str) -> bool:
        if any(model_matches(name, model) for name in self.models_not):
            return False
        return self.models is None or any(model_matches(name, model) for name in self.models)

    def and_(self, other: "Requirements") -> "Requirements":
        """Requirements that satisfy both, as when a pod names a class and requirements of its own."""
        return Requirements(
            memory_min=max(self.memory_min, other.memory_min),
            capability_min=max(self.capability_min, other.capability_min),
            driver_min=_later(self.driver_min, other.driver_min),
            cuda_min=_later(self.cuda_min, other.cuda_min),
            ecc=self.ecc or other.ecc,
            nvlink=self.nvlink or other.nvlink,
            numa=self.numa or other.numa,
            models=_both(self.models, other.models, model_matches),
            models_not=_union(self.models_not, other.models_not),
            uuids=_both(self.uuids, other.uuids, str.__eq__),
            uuids_not=_union(self.uuids_not, other.uuids_not),
        )

    def __str__(self) -> str:
        """The requirements in the language that `parse_requirements` reads."""
        return ", ".join(_terms(self))


ANY = Requirements()
"""Every GPU fits."""


# A requirement is a line that a person writes; longer ones are mistakes or attacks.
TEXT_MAX = 2000
_NAMES_MAX = 64

_TERM = re.compile(
    r"""\s*(?P<key>[a-z]+)\s*
        (?: (?P<cmp>>=|!=|==?|<=|<|>)\s*(?P<value>[^\s,()]+)
          | (?P<set>(?:not\s+)?in)\s*\((?P<names>[^()]*)\)
        )?\s*""",
    re.VERBOSE,
)
FORMS = {
    "memory": "memory>=SIZE",
    "cc": "cc>=X.Y",
    "driver": "driver>=VERSION",
    "cuda": "cuda>=VERSION",
    "ecc": "ecc",
    "nvlink": "nvlink",
    "numa": "numa",
    "model": "model=NAME, model!=NAME, model in (A, B) or model not in (A, B)",
    "uuid": "uuid=GPU-…, uuid!=GPU-…, uuid in (…) or uuid not in (…)",
}


_VERSION = r"[0-9]+([.][0-9]+)*"
_COMPARED = {
    "memory": r"[0-9.]+[A-Za-z]{0,2}",
    "cc": r"[0-9]+[.][0-9]+",
    "driver": _VERSION,
    "cuda": _VERSION,
}
_FLAGS = ("ecc", "nvlink", "numa")
_NAMED = r"(model|uuid)\s*(=|==|!=)\s*[^\s,()]+|(model|uuid)\s+(not\s+)?in\s*\([^()]+\)"
_ANY_TERM = "|".join((*(rf"{key}\s*>=\s*{value}" for key, value in _COMPARED.items()), *_FLAGS, _NAMED))
GRAMMAR = rf"^\s*({_ANY_TERM})(\s*,\s*({_ANY_TERM}))*\s*$"
"""The form of the language as a regular expression of RE2, for the API server: all that can be read matches it."""


def parse_requirements(field: str, text: object) -> Requirements:
    """Read the language; an unknown word is refused, because "ecccc" must not mean "no requirement"."""
    if not isinstance(text, str) or not text.strip() or len(text) > TEXT_MAX:
        raise BadRequest(field, text, f"requirements such as memory>=16Gi, ecc (1 to {TEXT_MAX} characters)")
    result = ANY
    seen: set[str] = set()
    for term in _split(text):
        match = _TERM.fullmatch(term)
        key = match["key"] if match else ""
        if match is None or key not in FORMS:
            raise BadRequest(field, term.strip(), f"one of {', '.join(FORMS)}", hint=f"write e.g. {_EXAMPLE}")
        form = f"{key} {_sense(match)}"
        if form in seen:
            raise BadRequest(
                field, term.strip(), f"given once for {key}", hint="put several names into model in (A, B)"
            )
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
        return BadRequest(field, term, FORMS[key])

    if key in {"ecc", "nvlink", "numa"}:
        if compare or match["set"]:
            raise bad()
        return Requirements(ecc=key == "ecc", nvlink=key == "nvlink", numa=key == "numa")
    if key in _COMPARED:
        if compare != ">=":
            raise bad()
        return _minimum(f"{field}: {key}", key, value)
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


def _minimum(field: str, key: str, value: str) -> Requirements:
    match key:
        case "memory":
            return replace(ANY, memory_min=parse_size_with_unit(field, value))
        case "cc":
            return replace(ANY, capability_min=parse_capability(field, value))
        case "driver":
            return replace(ANY, driver_min=parse_version(field, value))
        case _:
            return replace(ANY, cuda_min=parse_version(field, value))


_MODEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 ._/-]{0,62}[A-Za-z0-9])?")


def parse_model(field: str, value: object) -> str:
    """Read a model's name as people write it."""
    if not (isinstance(value, str) and _MODEL.fullmatch(value)):
        raise BadRequest(field, value, "a model's name such as V100 or A100-SXM4-80GB")
    return value


def _later(ours: DottedVersion | None, theirs: DottedVersion | None) -> DottedVersion | None:
    return max((each for each in (ours, theirs) if each is not None), default=None)


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
    if wants.driver_min is not None:
        yield f"driver>={wants.driver_min}"
    if wants.cuda_min is not None:
        yield f"cuda>={wants.cuda_min}"
    for flag in ("ecc", "nvlink", "numa"):
        if getattr(wants, flag):
            yield flag
    for key, yes, no in (("model", wants.models, wants.models_not), ("uuid", wants.uuids, wants.uuids_not)):
        if yes is not None:
            yield f"{key} in ({', '.join(yes)})"
        if no:
            yield f"{key} not in ({', '.join(no)})"
