"""The scheduler service's metrics."""

from collections.abc import Generator
from contextlib import contextmanager
from time import perf_counter

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from milligpu import __version__

# Fine steps where latencies are expected, coarse ones above.
_BUCKETS = (0.0005, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


class SchedulerMetrics:
    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        build = Gauge("milligpu_build_info", "The version.", ["version"], registry=self._registry)
        build.labels(__version__).set(1)
        self._answers = Histogram(
            "milligpu_scheduler_answer_seconds",
            "How long kube-scheduler waited for an answer, without the time a filter was held back.",
            ["verb"],
            buckets=_BUCKETS,
            registry=self._registry,
        )
        verbs = ("filter", "prioritize", "simulate", "preempt", "bind")
        self._verbs = {verb: self._answers.labels(verb) for verb in verbs}
        self.held_back = Counter(
            "milligpu_scheduler_held_back_seconds",
            "How long filters were held back because many binds were under way.",
            registry=self._registry,
        )
        self.binds = Counter("milligpu_scheduler_binds", "Binds by outcome.", ["outcome"], registry=self._registry)
        self._pods = Gauge("milligpu_scheduler_pods", "Pods that want GPUs.", ["stage"], registry=self._registry)
        self._leading = Gauge("milligpu_scheduler_leading", "1 on the leader.", registry=self._registry)

    @contextmanager
    def timed(self, verb: str) -> Generator[None]:
        start = perf_counter()
        try:
            yield
        finally:
            self._verbs[verb].observe(perf_counter() - start)

    def text(self, stages: dict[str, int] | None) -> str:
        """Return the metrics for Prometheus; `stages` counts the leader's pods, None on a standby."""
        self._leading.set(stages is not None)
        self._pods.clear()
        for stage, count in (stages or {}).items():
            self._pods.labels(stage).set(count)
        return generate_latest(self._registry).decode()
