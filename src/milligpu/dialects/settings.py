"""What some manifests leave to the configuration of the cluster for which they were written.

A dialect declares each such setting once. The options of `milligpu translate` and `milligpu scheduler serve` and
the table of settings in docs/dialects.md are made from the declarations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar, cast

from milligpu.model.errors import BadRequest

T = TypeVar("T", bound=int | str)


@dataclass(frozen=True, slots=True)
class DialectSettings:
    """An admin's values, by the name of the setting; a setting that is left out has its default."""

    values: Mapping[str, int | str] = field(default_factory=dict[str, int | str])


@dataclass(frozen=True, slots=True)
class DialectSetting(Generic[T]):
    """One setting; its option is `--NAME`."""

    name: str
    default: T
    allowed: Sequence[T]
    """A range of numbers, or all choices."""
    help: str

    def of(self, settings: DialectSettings) -> T:
        """Return the value of this setting."""
        value = settings.values.get(self.name, self.default)
        if value not in self.allowed:
            raise BadRequest(f"--{self.name}", value, self.allowed_text)
        return self.allowed[self.allowed.index(cast("T", value))]

    @property
    def allowed_text(self) -> str:
        """All values that are allowed, as errors and docs name them."""
        if isinstance(self.allowed, range):
            return f"from {self.allowed[0]} to {self.allowed[-1]}"
        *others, last = map(str, self.allowed)
        return f"{', '.join(others)} or {last}"


DEFAULTS = DialectSettings()
