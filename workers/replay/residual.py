"""How far off the interpolated step times of a replay are."""

import numpy as np

from workers.replay import state
from workers.replay.fleet import Pool
from workers.replay.state import State
from workers.replay.step_lookup import KNOTS, NUM_CELLS, TIMING, cell_of

_MOST_ASKED = 20


def residual(st: State, pool: Pool) -> float:
    """Largest relative error of interpolated decode times against direct calls, 0 where a replay asked every time it used.

    On at most 20 stretches of decode passes of the finished replay, spread evenly over its course. Prefill times are always
    asked. Source: kernel specification, section 10.
    """
    if st["timing"][TIMING] != KNOTS:
        return 0.0
    log = st["gaps"][: int(st["numbers"][state.GAPS_USED])]
    stretches = np.flatnonzero(log[:, state.GAP_STEPS] > 0)
    worst = 0.0
    for i in stretches[np.linspace(0, len(stretches) - 1, min(_MOST_ASKED, len(stretches)), dtype=np.int64)].tolist():
        n, steps = int(log[i, state.GAP_COUNT]), int(log[i, state.GAP_STEPS])
        total = int(log[i, state.GAP_CONTEXT]) + n * (steps // 2)
        cell, start, _ = cell_of(total // n)
        value, slope = st["decode_table"][2 * (n * NUM_CELLS + cell) :][:2]
        asked = pool.step_times.decode_ms(n, total, total // n)
        worst = max(worst, abs(float(value + slope * (total // n - start)) / asked - 1.0))
    return worst
