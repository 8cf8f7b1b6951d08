"""A scaler that decides at random, the same for the same seed: what any planner may do."""

from collections.abc import Mapping

import numpy as np

from workers.planner.observation import Observation, Role


class RandomScaler:
    """Wants 1 to `most` engines of every role, or says nothing of it; remembers what it has seen."""

    def __init__(self, seed: int, most: int = 4) -> None:
        self._rng = np.random.default_rng([seed, most])
        self._most = most
        self.interval_ms = float(self._rng.choice([4.0, 9.0, 25.0, 70.0]))
        self.startup_ms = float(self._rng.choice([0.0, 0.0, 3.0, 9.0, 40.0]))
        self.seen: list[Observation] = []

    def decide(self, observation: Observation) -> Mapping[Role, int]:
        """Another fleet at about every second tick."""
        self.seen.append(observation)
        return {
            role: int(self._rng.integers(1, self._most + 1)) for role in observation.roles if self._rng.random() < 0.5
        }
