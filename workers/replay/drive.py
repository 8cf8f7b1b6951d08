"""Drive the compiled loop: answer what it asks, and stop when the caller says so."""

from collections.abc import Callable
from typing import Any

from workers.errors import ReasonCode, StoppedError, StuckError
from workers.replay import event_loop, passes, state
from workers.replay.arrays import lengthen_gap_log
from workers.replay.compiled import compile_once
from workers.replay.drafts import extend_draws
from workers.replay.fleet import Pool
from workers.replay.state import State
from workers.replay.step_table import StepTable

ShouldStop = Callable[[], bool]

EVENTS_BETWEEN_CHECKS = 1 << 16


def drive(
    st: State,
    pool: Pool,
    table: StepTable,
    exact: bool,
    should_stop: ShouldStop | None = None,
    run: Any = event_loop.run,
) -> int:
    """Call the compiled loop until it has finished, a tick is due or it needs its cache; answers its other questions.

    Raises: StuckError when the modelled engine makes no progress, StoppedError when `should_stop` says so.
    """
    compile_once(run, st.book)
    table.lend_to(st, exact)
    while True:
        st["numbers"][state.EVENTS_LEFT] = EVENTS_BETWEEN_CHECKS
        code = int(run(st.book))
        if code in (passes.FINISHED, passes.TICK_DUE, passes.NEED_CACHE):
            return code
        answer(code, st, pool, table, exact)
        check_stop(should_stop)


def answer(code: int, st: State, pool: Pool, table: StepTable, exact: bool) -> None:
    """Give the loop what it stopped for. Raises: StuckError when the modelled engine makes no progress."""
    number = st["numbers"]
    n, a, b = (int(number[i]) for i in (state.MISS_N, state.MISS_A, state.MISS_B))
    if code == passes.STUCK:
        raise StuckError(ReasonCode.REPLAY_STUCK, f"no progress at {st['moments'][state.NOW]} ms")
    if code == passes.NEED_PREFILL:
        table.learn_prefill(n, a, b)
        table.lend_to(st, exact)
    elif code == passes.NEED_DECODE:
        table.learn_decode(n, a, b, exact)
        table.lend_to(st, exact)
    elif code == passes.NEED_DRAWS:
        extend_draws(st, pool)
    elif code == passes.GROW_GAPS:
        lengthen_gap_log(st)


def check_stop(should_stop: ShouldStop | None) -> None:
    """Raises: StoppedError when the caller wants no more."""
    if should_stop is not None and should_stop():
        raise StoppedError(ReasonCode.EXCEEDED_RUNTIME, "the caller stopped the replay")
