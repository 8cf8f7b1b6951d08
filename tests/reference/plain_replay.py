"""The plain replay: what the compiled kernel must agree with, written to be read, one event at a time.

Rules: replay-engine specification (engine), traffic specification (clock, order of events, hand-over). Slow on purpose.
"""

from tests.reference.aggregated import AggregatedReplay
from tests.reference.disaggregated import DisaggregatedReplay
from tests.reference.outcomes import outcomes_of
from tests.reference.sequence import sequences
from workers.replay.fleet import Fleet
from workers.replay.outcomes import Outcomes
from workers.traffic.requests import RequestBatch


def replay(fleet: Fleet, batch: RequestBatch) -> Outcomes:
    """Replay every request; times in ms from 0. Raises StuckError where the modelled engine makes no progress."""
    seqs = sequences(batch)
    run = AggregatedReplay(fleet, batch, seqs) if fleet.agg else DisaggregatedReplay(fleet, batch, seqs)
    run.run()
    return outcomes_of(batch, seqs, run)
