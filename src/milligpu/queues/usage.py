"""What a user had of late: one number and the time when it was right, because exponential decay needs no more."""

from dataclasses import dataclass

# A week, as Slurm's and Kueue's fair shares have it: a busy Monday is half forgotten on the next.
HALF_LIFE_S = 7 * 24 * 3600.0


@dataclass(frozen=True, slots=True)
class DecayedUsage:
    """Milli-GPU on average, weighted by how long ago they were held; what is held now goes on counting."""

    average: float = 0.0
    at: float = 0.0
    held: int = 0

    def until(self, now: float, half_life_s: float = HALF_LIFE_S) -> "DecayedUsage":
        """The same usage at a later time."""
        kept = 0.5 ** (max(0.0, now - self.at) / half_life_s)
        return DecayedUsage(self.held + (self.average - self.held) * kept, max(now, self.at), self.held)

    def hold(self, change: int, now: float, half_life_s: float = HALF_LIFE_S) -> "DecayedUsage":
        """The usage after a pod started (above 0) or ended (below 0)."""
        then = self.until(now, half_life_s)
        return DecayedUsage(then.average, then.at, then.held + change)
