"""The expected workload, against which fragmentation is measured.

It is learned from requests, as a histogram in which old requests count less and less. Before the first request, a
few pseudo-requests for 1, 2, 4 and 8 whole GPUs stand in, and some that name a model. Otherwise a cluster whose
large jobs arrive late would be fragmented by then, and other pods would have taken its few GPUs of a rare model.
"""

from collections.abc import Iterable, Mapping

from milligpu.model.request import ContainerKind, ShareRequest
from milligpu.model.requirements import ANY, Requirements
from milligpu.model.units import WHOLE
from milligpu.placement.fit import RequestKey

# After this many requests a request counts half: about two weeks of a cluster of a thousand nodes.
HALF_LIFE = 20_000
# Each stands in for as many requests as this.
PRIOR_COUNT = 10.0
PRIOR_GPUS = (1, 2, 4, 8)
PRIOR_CPU_PER_GPU = 8000
# As many stand in for requests that name a model, for each model there is.
PRIOR_MODEL_COUNT = 10.0
# More different requests than this are a long tail that weighs nothing; the lightest half goes.
ENTRIES_MAX = 2048


class ExpectedWorkload:
    """Counts of requests by spec."""

    def __init__(self, known: Mapping[RequestKey, float] | None = None, *, half_life: float = HALF_LIFE) -> None:
        """Start with the pseudo-requests and learn, or take `known` as it is and learn nothing."""
        self.fixed = known is not None
        self._growth = 2.0 ** (1.0 / half_life)
        self._weight = 1.0
        self._counts: dict[RequestKey, float] = dict(known) if known is not None else _prior()

    def observe(self, key: RequestKey) -> None:
        """Count one more request."""
        if self.fixed:
            return
        # Instead of reducing all old counts, each new request weighs more.
        self._weight *= self._growth
        self._counts[key] = self._counts.get(key, 0.0) + self._weight
        if self._weight > _WEIGHT_MAX:
            self._counts = {each: count / self._weight for each, count in self._counts.items()}
            self._weight = 1.0
        if len(self._counts) > ENTRIES_MAX:
            heaviest = sorted(self._counts.items(), key=lambda item: -item[1])
            self._counts = dict(heaviest[: ENTRIES_MAX // 2])

    def counts(self, models: Iterable[str] = ()) -> Mapping[RequestKey, float]:
        """Return the weight of each request; only proportions matter. `models` are the models in the cluster."""
        if self.fixed:
            return self._counts
        named = {whole_gpus(1, PRIOR_CPU_PER_GPU, model): PRIOR_MODEL_COUNT for model in set(models)}
        return named | self._counts


# Small enough that a float still holds small counts next to large ones.
_WEIGHT_MAX = 2.0**40


def whole_gpus(count: int, cpu_milli: int = 0, model: str | None = None) -> RequestKey:
    """The spec of a pod with one container that asks for whole GPUs, of any model or of one."""
    wants = ANY if model is None else Requirements(models=(model,))
    return RequestKey(((ShareRequest(count, WHOLE), ContainerKind.MAIN),), None, wants, cpu_milli)


def _prior() -> dict[RequestKey, float]:
    return {whole_gpus(count, PRIOR_CPU_PER_GPU * count): PRIOR_COUNT for count in PRIOR_GPUS}
