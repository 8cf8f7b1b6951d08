"""When requests are released: arrival clock, think time, closed loop (traffic specification, section 2)."""

import heapq

from tests.reference.sequence import Sequence
from workers.traffic.requests import RequestBatch


class Releases:
    """Requests waiting for their moment; simultaneous ones leave in session order."""

    def __init__(self, batch: RequestBatch, sequences: list[Sequence]) -> None:
        self.batch = batch
        self.sequences = sequences
        self.due: list[tuple[float, int, int]] = []
        self.unreleased = 0
        first_turn = {}
        for seq in reversed(sequences):
            first_turn[seq.session] = seq
        firsts = [first_turn[int(session)] for session in batch.order]
        self.backlog: list[Sequence] = []
        if batch.in_flight_cap is None:
            for seq in firsts:
                self._schedule(seq, float(batch.arrival_ms[seq.index]))
        else:
            self.backlog = firsts[::-1]
            for _ in range(min(batch.in_flight_cap, len(firsts))):
                self._schedule(self.backlog.pop(), 0.0)

    @property
    def next_ms(self) -> float:
        """Time of the next release, infinity if none is known yet."""
        return self.due[0][0] if self.due else float("inf")

    def pop_due(self, now: float) -> list[Sequence]:
        """Requests released at or before `now`, stamped with their own release time."""
        released = []
        while self.due and self.due[0][0] <= now:
            at, _, index = heapq.heappop(self.due)
            self.sequences[index].arrival_ms = at
            released.append(self.sequences[index])
        return released

    def ended(self, seq: Sequence, now: float) -> None:
        """A request ended: its session's next turn follows after the think time, or the next session takes its slot."""
        following = seq.index + 1
        if following < len(self.sequences) and self.sequences[following].session == seq.session:
            self._schedule(self.sequences[following], now + float(self.batch.delay_ms[following]))
        else:
            self.abandoned(now)

    def abandoned(self, now: float) -> None:
        """A session is over, whatever turns it had left: the next one takes its slot."""
        if self.backlog:
            self._schedule(self.backlog.pop(), now)

    def _schedule(self, seq: Sequence, at: float) -> None:
        heapq.heappush(self.due, (at, seq.session, seq.index))
