"""The prices file: what an hour of each GPU model costs. Pure."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from milligpu.model.errors import BadRequest

EXAMPLE = 'currency = "EUR"\n[gpu]\n"A100-SXM4-40GB" = 2.20\n'


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices per card and hour."""

    currency: str
    per_hour: Mapping[str, float]
    """By model, as NVML names it, with or without the brand."""

    def of(self, model: str) -> float | None:
        """The price of an hour; None if the file does not have the model."""
        found = self.per_hour.get(model)
        return found if found is not None else self.per_hour.get(_short(model))


NO_PRICES = Prices("", {})


def _short(model: str) -> str:
    """The model without its brand, as people write it."""
    for brand in ("NVIDIA ", "Tesla "):
        model = model.removeprefix(brand)
    return model


def read_prices(text: str, name: str) -> Prices:
    """Read the file, or refuse it with the field, the line and what is allowed; `name` is the file's."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        # A model that is there twice is an error of TOML itself, with its line.
        raise BadRequest(name, str(error), f"TOML, such as {EXAMPLE!r}") from None
    currency = data.pop("currency", None)
    if not (isinstance(currency, str) and len(currency) == 3 and currency.isascii() and currency.isupper()):
        raise BadRequest(f"{name}: currency", currency, "a code of three letters, such as EUR")
    table: object = data.pop("gpu", None)
    if not isinstance(table, dict) or not table:
        raise BadRequest(f"{name}: [gpu]", cast("object", table), "a table with the price of an hour of each model")
    prices = cast("dict[str, object]", table)
    if data:
        raise BadRequest(f"{name}: {next(iter(data))}", next(iter(data.values())), "currency or [gpu]")
    found: dict[str, float] = {}
    for model, price in prices.items():
        where = f"{name}:{_line(text, model)}: {model}"
        if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price < float("inf"):
            raise BadRequest(where, price, "a price per hour, 0 or more")
        if _short(model) in {_short(each) for each in found}:
            raise BadRequest(where, price, "one price for each model")
        found[_short(model)] = float(price)
    return Prices(currency, found)


def _line(text: str, model: str) -> int:
    return next((at for at, line in enumerate(text.splitlines(), 1) if line.lstrip(' "').startswith(model)), 0)
