"""The GPU band around every decision: a hard ceiling, a floor that holds scale-downs, and fewest engines per role.

Bounds may hold a decision back, never turn or enlarge it; only an allocation that is over the ceiling already is pulled
back. Source: search spec, section 5.7.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from workers.planner.observation import Role
from workers.planner.settings import NO_FLOOR

Counts = Mapping[Role, int]


@dataclass(frozen=True, slots=True)
class Band:
    """GPUs of the whole deployment, GPUs of one engine and fewest engines per role."""

    max_gpus: int
    min_gpus: int
    widths: Counts
    floors: Counts

    def gpus(self, counts: Counts) -> int:
        """GPUs of so many engines."""
        return sum(count * self.widths[role] for role, count in counts.items())

    def fit(self, now: Counts, wanted: Counts) -> dict[Role, int]:
        """What may be done of a decision, engines per role."""
        if self.gpus(self.floors) > self.max_gpus:
            return dict(now)
        if self.gpus(now) > self.max_gpus:
            return self._shrunk(now)
        ups = [role for role in now if wanted[role] > now[role]]
        downs = [role for role in now if wanted[role] < now[role]]
        if self._is_held(now, wanted, ups, downs):
            return dict(now)
        allowed = dict(wanted) if self.gpus(wanted) <= self.max_gpus else self._shrunk(wanted)
        if downs and not ups:
            allowed = self._kept(now, allowed)
        turned = any(not min(now[role], wanted[role]) <= allowed[role] <= max(now[role], wanted[role]) for role in now)
        return dict(now) if turned or self._is_torn(now, allowed, ups, downs) else allowed

    def _is_held(self, now: Counts, wanted: Counts, ups: list[Role], downs: list[Role]) -> bool:
        """At the ceiling nothing grows unless another role gives way; at the floor nothing shrinks by itself."""
        total = self.gpus(now)
        if downs and not ups and self.min_gpus != NO_FLOOR and total <= self.min_gpus:
            return True
        if not ups or total < self.max_gpus:
            return False
        return not downs or self.gpus(wanted) > self.max_gpus

    def _is_torn(self, now: Counts, allowed: Counts, ups: list[Role], downs: list[Role]) -> bool:
        """Whether only one half of an exchange would be left."""
        return bool(ups and downs) and any(allowed[role] == now[role] for role in (*ups, *downs))

    def _kept(self, now: Counts, wanted: Counts) -> dict[Role, int]:
        """A scale-down that stops above the floor, as far as the widest engine allows."""
        if self.min_gpus == NO_FLOOR or self.gpus(wanted) >= self.min_gpus - max(self.widths.values()):
            return dict(wanted)
        kept = dict(wanted)
        for role in kept:
            while kept[role] < now[role] and self.gpus(kept) < self.min_gpus:
                kept[role] += 1
        return kept

    def _shrunk(self, counts: Counts) -> dict[Role, int]:
        """As many engines as fit under the ceiling, in about the proportions given."""
        if set(counts) != {"prefill", "decode"}:
            (role,) = counts
            return {role: max(self.floors[role], self.max_gpus // self.widths[role])}
        total = self.gpus(counts)
        most = (self.max_gpus - self.floors["decode"] * self.widths["decode"]) // self.widths["prefill"]
        prefill = max(self.floors["prefill"], min(most, counts["prefill"] * self.max_gpus // total))
        rest = self.max_gpus - prefill * self.widths["prefill"]
        return {"prefill": prefill, "decode": max(self.floors["decode"], rest // self.widths["decode"])}
