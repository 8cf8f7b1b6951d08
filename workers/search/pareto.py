"""The non-dominated front, one shot or candidate by candidate.

Source: search.md, section 3 (probe S09); service.md, section 8: rejecting work never wins, so fewer rejected requests
count as one more objective.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from workers.search.score import Scored, signed


def gains(objectives: Sequence[str], candidate: Scored) -> tuple[float, ...]:
    """Objective values such that larger is better, fewer rejected requests last."""
    values = (signed(name, value) for name, value in zip(objectives, candidate.values, strict=True))
    return (*values, -float(candidate.rejected))


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """At least as good everywhere and better somewhere; equal points do not dominate each other."""
    return all(a >= b for a, b in zip(one, other, strict=True)) and tuple(one) != tuple(other)


def front_key(objectives: Sequence[str], candidate: Scored) -> tuple[float, tuple[float, ...], int, str]:
    """Sort key along the last objective, ascending; then the others best first, fewer GPUs, canonical JSON."""
    others = tuple(-value for value in gains(objectives, candidate)[:-2])
    return (candidate.values[-1], others, candidate.used_gpus, candidate.canonical)


@dataclass(slots=True)
class Front:
    """A front that takes one candidate after the other; the result does not depend on their order."""

    objectives: tuple[str, ...]
    members: list[tuple[tuple[float, ...], Scored]] = field(default_factory=list)

    def add(self, candidate: Scored) -> bool:
        """Whether the candidate is on the front; members that it dominates leave."""
        point = gains(self.objectives, candidate)
        if any(dominates(other, point) for other, _ in self.members):
            return False
        self.members = [(other, member) for other, member in self.members if not dominates(point, other)]
        self.members.append((point, candidate))
        return True

    def ordered(self) -> list[Scored]:
        """The members along the front: `front_key`."""
        members = (candidate for _, candidate in self.members)
        return sorted(members, key=lambda candidate: front_key(self.objectives, candidate))


def front_of(objectives: Sequence[str], candidates: Iterable[Scored]) -> list[Scored]:
    """The non-dominated candidates in the front's order; equal points all stay."""
    kept = Front(tuple(objectives))
    for candidate in candidates:
        kept.add(candidate)
    return kept.ordered()
