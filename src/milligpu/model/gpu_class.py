"""Classes: names that an admin gives to requirements on GPUs, and what is tried when a class has no GPU free."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from milligpu.model.affinity import parse_label
from milligpu.model.errors import BadRequest
from milligpu.model.reasons import ClassReason, Reason
from milligpu.model.requirements import Requirements, parse_requirements

RESOURCE_PREFIX = "gpu-"
"""`gpu-gold: 1` is one whole GPU of the class gold."""
# The name of a resource has at most 63 characters.
NAME_MAX = 63 - len(RESOURCE_PREFIX)


@dataclass(frozen=True, slots=True)
class GpuClass:
    """What a `GpuClass` object says."""

    name: str
    requirements: Requirements | None
    """None where they cannot be read; `problem` then says why."""
    fallback: str = ""
    """The class that is tried when this one has no GPU free."""
    problem: str = ""


def parse_class_name(field: str, value: object) -> str:
    """Read the name of a class."""
    name = parse_label(field, value)
    if len(name) > NAME_MAX:
        raise BadRequest(
            field, value, f"at most {NAME_MAX} characters, because {RESOURCE_PREFIX}NAME is a resource"
        )
    return name


def parse_class(name: object, requirements: object, fallback: object = "") -> GpuClass:
    """Read a class, or refuse it with the field of the object that is wrong."""
    return GpuClass(
        parse_class_name("metadata.name", name),
        parse_requirements("spec.requirements", requirements),
        parse_class_name("spec.fallback", fallback) if fallback else "",
    )


def read_class(name: str, requirements: str, fallback: str) -> GpuClass:
    """Read a class that is in the cluster; one that admission would have refused keeps its name and its fault."""
    try:
        return parse_class(name, requirements, fallback)
    except BadRequest as error:
        return GpuClass(name, None, fallback, error.message)


@dataclass(frozen=True, slots=True)
class ClassCondition:
    """The condition `Ready` of a class."""

    reason: ClassReason
    message: str = ""

    @property
    def ready(self) -> bool:
        return self.reason is ClassReason.USABLE


class GpuClasses:
    """All classes of a cluster."""

    def __init__(self, classes: Iterable[GpuClass] = ()) -> None:
        self._classes: Mapping[str, GpuClass] = {
            each.name: each for each in sorted(classes, key=lambda each: each.name)
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GpuClasses) and self._classes == other._classes

    def __hash__(self) -> int:
        return hash(tuple(self._classes.values()))

    def __iter__(self) -> Iterator[GpuClass]:
        return iter(self._classes.values())

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._classes)

    def refusal(self, name: str) -> tuple[Reason, str] | None:
        """Why no GPU can be chosen by this class; None where one can."""
        found = self._classes.get(name)
        if found is None:
            return Reason.CLASS_GONE, f"class {name} does not exist; {self.choices()}"
        if found.requirements is None:
            return Reason.CLASS_INVALID, f"class {name}: {found.problem}"
        return None

    def choices(self) -> str:
        """The classes that exist, for messages."""
        return f"existing classes: {', '.join(self._classes)}" if self._classes else "no class exists"

    def check(self, field: str, name: str) -> None:
        """Refuse a name that is no class, or is one without readable requirements."""
        refused = self.refusal(name)
        if refused is None:
            return
        want = "the name of a GpuClass"
        if refused[0] is Reason.CLASS_INVALID:
            raise BadRequest(field, name, f"{want} with readable requirements", hint=refused[1])
        raise BadRequest(field, name, f"{want}; {self.choices()}", hint="list them with: milligpu class list")

    def requirements(self, name: str) -> Requirements:
        """What GPUs of this class are like."""
        self.check("class", name)
        found = self._classes[name].requirements
        assert found is not None
        return found

    def chain(self, name: str) -> tuple[str, ...]:
        """The class, then its fallbacks in the order in which they are tried, as far as they are usable."""
        found: dict[str, None] = {}
        while name not in found and self.refusal(name) is None:
            found[name] = None
            name = self._classes[name].fallback
        return tuple(found)

    def refuse_cycle(self, new: GpuClass) -> None:
        """Refuse a class whose fallbacks would lead back to it."""
        cycle = GpuClasses([*self._classes.values(), new]).cycle(new.name)
        if cycle:
            want = f"a class whose fallbacks do not lead back to {new.name}: {' -> '.join(cycle)}"
            raise BadRequest("spec.fallback", new.fallback, want)

    def cycle(self, name: str) -> tuple[str, ...]:
        """The way from a class over its fallbacks back to the first class that comes twice; empty if none does."""
        way: list[str] = []
        while name in self._classes:
            if name in way:
                return (*way, name)
            way.append(name)
            name = self._classes[name].fallback
        return ()

    def condition(self, name: str) -> ClassCondition:
        """Whether the class is as its author meant it."""
        found = self._classes[name]
        if found.requirements is None:
            return ClassCondition(ClassReason.INVALID_REQUIREMENTS, f"{found.problem}; pods of this class wait")
        cycle = self.cycle(name)
        if cycle:
            message = f"fallbacks form a cycle, and each is tried once: {' -> '.join(cycle)}"
            return ClassCondition(ClassReason.FALLBACK_CYCLE, message)
        if found.fallback and found.fallback not in self._classes:
            message = f"class {found.fallback} does not exist; pods get GPUs of class {name} only"
            return ClassCondition(ClassReason.FALLBACK_GONE, message)
        return ClassCondition(ClassReason.USABLE)


NO_CLASSES = GpuClasses()
