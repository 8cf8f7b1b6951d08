"""Which draft tokens a speculative decode step accepts."""

import random


class Acceptance:
    """Conditional acceptance probability per draft position; probabilities 0 and 1 need no random number."""

    def __init__(self, probabilities: tuple[float, ...], seed: int) -> None:
        self.probabilities = probabilities
        self.random = random.Random(seed)

    def accepted(self, limit: int) -> int:
        """Leading acceptances among the first `limit` drafts, stopping at the first failure."""
        for position, probability in enumerate(self.probabilities[:limit]):
            if probability <= 0.0 or (probability < 1.0 and self.random.random() >= probability):
                return position
        return min(limit, len(self.probabilities))
