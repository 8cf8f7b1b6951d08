"""Which draft tokens a speculative decode step accepts, draw for draw as the modelled engine."""

from collections.abc import Iterator

from workers.traffic.random_stream import RandomStream

_DRAWS_AT_ONCE = 1024


class Acceptance:
    """Conditional acceptance probability per draft position.

    Every verified draft is drawn until one fails, whatever output is left for it; certain acceptance needs no draw.
    """

    def __init__(self, probabilities: tuple[float, ...], seed: int) -> None:
        self.probabilities = probabilities
        self.draws = _draws(seed)

    def accepted(self, drafts: int) -> int:
        """Leading acceptances among the first `drafts`."""
        for position, probability in enumerate(self.probabilities[:drafts]):
            if probability < 1.0 and next(self.draws) >= probability:
                return position
        return min(drafts, len(self.probabilities))


def _draws(seed: int) -> Iterator[float]:
    """The uniform draws of one rank."""
    stream = RandomStream(seed)
    while True:
        yield from stream.uniforms(_DRAWS_AT_ONCE).tolist()
