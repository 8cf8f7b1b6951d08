"""Replay a batch on prefill and decode pools: the states of both, their compiled clock, and what happened.

Every request is in both states: in the prefill pool's as one of a single token at most, in the decode pool's with all of them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.errors import ReasonCode, StuckError, UnsupportedError
from workers.replay import handoff_cohorts, handoff_loop, passes, state
from workers.replay.arrays import build, order_handoffs
from workers.replay.batch_facts import facts_of
from workers.replay.compiled import compile_once
from workers.replay.drafts import extend_draws, needs_draws
from workers.replay.drive import EVENTS_BETWEEN_CHECKS, answer
from workers.replay.fleet import Fleet, Pool, Transfer
from workers.replay.kept import Kept
from workers.replay.reductions import folded_both, hands_over_in_order
from workers.replay.state import State
from workers.replay.step_table import StepTable, step_table
from workers.traffic.requests import RequestBatch

_ENDS = (
    passes.FINISHED,
    passes.STUCK,
    passes.TICK_DUE,
    passes.NEED_CACHE,
    handoff_loop.NEED_EXPLICIT,
    handoff_loop.NEED_RADIX_NODES,
)


@dataclass(frozen=True, slots=True)
class Side:
    """One pool of a disaggregated fleet, its step times and its state."""

    pool: Pool
    table: StepTable
    st: State


def pools_of(fleet: Fleet) -> tuple[Pool, Pool]:
    """(prefill, decode). Raises: UnsupportedError for combinations that cannot hand over."""
    prefill, decode = fleet.prefill, fleet.decode
    if prefill is None or decode is None:
        raise UnsupportedError(ReasonCode.REPLAY_ERROR, "a fleet has either aggregated or prefill and decode engines")
    if prefill.backend != decode.backend:
        detail = f"{prefill.backend} cannot hand over to {decode.backend}: both roles need the same backend"
        raise UnsupportedError(ReasonCode.BACKEND_CANNOT_RUN_SHAPE, detail)
    return prefill, decode


def replay_both(fleet: Fleet, batch: RequestBatch, check_stop: Callable[[], None]) -> tuple[Side, Side]:
    """(prefill, decode) after the replay. Raises: StuckError, UnsupportedError; whatever `check_stop` raises."""
    sides = _finished(fleet, batch, None, check_stop)
    if batch.stop_after_ms is not None:
        # A second run leaves out the token gaps of what the limit cuts off.
        sides = _finished(fleet, batch, sides[1].st["requests"][:, state.STATUS] == state.WAITING, check_stop)
    _add_committed(*sides)
    return sides


def replay_part(fleet: Fleet, batch: RequestBatch, check_stop: Callable[[], None]) -> tuple[Side, Side, int]:
    """(prefill, decode, copies): the replay of one of as many equal parts of the fleet. Raises: as `replay_both`."""
    if fleet.router is None and batch.stop_after_ms is None:
        prefill, decode, load, copies = folded_both(*pools_of(fleet), batch)
        if copies > 1:
            sides = _by_counters(replace(fleet, prefill=prefill, decode=decode), load, check_stop)
            if sides is not None:
                _add_committed(*sides)
                return *sides, copies
    return *replay_both(fleet, batch, check_stop), 1


def _add_committed(pre: Side, dec: Side) -> None:
    dec.st["numbers"][state.COMMITTED_PREFILL] += pre.st["numbers"][state.COMMITTED_PREFILL]


def _by_counters(fleet: Fleet, batch: RequestBatch, check_stop: Callable[[], None]) -> tuple[Side, Side] | None:
    """Both sides replayed by `handoff_cohorts`; None when it gives up."""
    sides = sides_of(fleet, pools_of(fleet), batch, None, in_order=True)
    order_handoffs(sides[0].st, sides[1].st)
    ended = drive_both(sides, facts_of(batch).asks_each_decode, check_stop, handoff_cohorts.run)
    return sides if ended == passes.FINISHED else None


def _finished(
    fleet: Fleet, batch: RequestBatch, silent: NDArray[np.bool_] | None, check_stop: Callable[[], None]
) -> tuple[Side, Side]:
    """Both sides after one whole run, started anew when it asks for it."""
    pools = pools_of(fleet)
    explicit, radix_nodes, full_cache = False, None, False
    exact = facts_of(batch).asks_each_decode
    if fleet.router is None and hands_over_in_order(*pools, batch):
        in_order = _by_counters(fleet, batch, check_stop)
        if in_order is not None:
            return in_order
    while True:
        sides = sides_of(fleet, pools, batch, radix_nodes, full_cache=full_cache)
        dec = sides[1].st
        if explicit:
            dec["limits"][state.EXPLICIT] = 1
        if silent is not None:
            dec["requests"][:, state.SILENT] = silent
        code = drive_both(sides, exact, check_stop)
        if code == passes.FINISHED:
            return sides
        if code == passes.STUCK:
            raise StuckError(ReasonCode.REPLAY_STUCK, f"no progress at {dec['moments'][state.NOW]} ms")
        explicit |= code == handoff_loop.NEED_EXPLICIT
        full_cache |= code == passes.NEED_CACHE
        if code == handoff_loop.NEED_RADIX_NODES:
            radix_nodes = 2 * max(len(side.st["sgl_nodes"]) for side in sides)


def sides_of(
    fleet: Fleet,
    pools: tuple[Pool, Pool],
    batch: RequestBatch,
    radix_nodes: int | None,
    *,
    full_cache: bool = True,
    in_order: bool = False,
) -> tuple[Side, Side]:
    """Both sides at time 0; the arguments are those of `arrays.build`."""
    prefill, decode = pools
    pre, dec = (
        build(pool, load, radix_nodes, fleet.router, full_cache=full_cache, in_order=in_order)
        for pool, load in ((prefill, prompts_of(batch)), (decode, batch))
    )
    _add_handoffs(dec, fleet.transfer, prefill.replicas * prefill.attention_dp, 1 if in_order else batch.num_requests)
    sides = Side(prefill, step_table(prefill.step_times), pre), Side(decode, step_table(decode.step_times), dec)
    for side in sides:
        side.st["numbers"][state.LAST_REPLICA] = side.pool.replicas
        side.st["numbers"][state.SESSION_STRIDE] = 1
        if needs_draws(side.pool):
            extend_draws(side.st, side.pool)
    return sides


_prompts = Kept[RequestBatch](most=16)


def prompts_of(batch: RequestBatch) -> RequestBatch:
    """The same requests with one output token each at most; kept, as candidates share batches."""

    def without_rest() -> RequestBatch:
        return replace(batch, output_tokens=np.minimum(batch.output_tokens, 1))

    return _prompts.of((batch,), without_rest, weight=batch.num_requests)


def _add_handoffs(dec: State, transfer: Transfer, num_sources: int, num_kept: int) -> None:
    """Fill the hand-over's arrays at time 0, with rows for `num_kept` requests."""
    dec["handoffs"] = np.full((num_kept, state.NUM_HANDOFF_COLUMNS), state.NONE, dtype=np.int64)
    dec["lands"] = np.full(len(dec["requests"]), np.inf)
    dec["targets"] = np.full((len(dec["ranks"]), state.NUM_TARGET_COLUMNS), state.NONE, dtype=np.int64)
    dec["targets"][:, state.MAY_SERVE] = 0
    dec["sources"] = np.full((num_sources, state.NUM_SOURCE_COLUMNS), state.NONE, dtype=np.int64)
    rates = np.zeros(state.NUM_TRANSFER)
    rates[state.TOKEN_BYTES], rates[state.GB_PER_S] = (
        transfer.bytes_per_token or 0.0,
        transfer.bandwidth_gb_per_s or 0.0,
    )
    rates[state.MISSING_ONLY] = float(transfer.timing == "destination_missing")
    dec["transfer"] = rates


def drive_both(
    sides: tuple[Side, Side], exact: bool, check_stop: Callable[[], None], run: Any = handoff_loop.run
) -> int:
    """Call the compiled clock until it has finished, is stuck, has a tick due or has to start anew; answer its other
    questions."""
    pre, dec = sides[0].st, sides[1].st
    number = dec["numbers"]
    compile_once(run, pre.book, dec.book)
    while True:
        for side in sides:  # both, as they may share a table, whose arrays change when it grows
            side.table.lend_to(side.st, exact)
        number[state.EVENTS_LEFT] = EVENTS_BETWEEN_CHECKS
        code = run(pre.book, dec.book)
        if code in _ENDS:
            return int(code)
        side = sides[int(number[state.ASKING])]
        answer(code, side.st, side.pool, side.table, exact)
        check_stop()


def mark_arrived(pre: Side, dec: Side) -> None:
    """For the report: a request that only the prefill pool has seen has arrived too."""
    workers = dec.st["requests"][:, state.WORKER]
    np.maximum(workers, pre.st["requests"][:, state.WORKER], out=workers)
