"""Open-loop replicas without sessions never meet: each is replayed by itself, several at a time where there are threads.

Threads share the arrays of one state whose rows lie by replica, and have to themselves what they would write to side by side.
Put together in the order of replicas, what they counted and logged is, byte for byte, that of a single thread.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise

import numpy as np

from workers.replay import event_loop, passes, state
from workers.replay.compiled import compile_once
from workers.replay.drive import EVENTS_BETWEEN_CHECKS, ShouldStop, answer, check_stop
from workers.replay.fleet import Pool
from workers.replay.state import State
from workers.replay.step_table import StepTable

_VIEWS_PER_THREAD = 2
_FIRST_GAPS, _GAPS_PER_REQUEST = 4096, 4
_OWN = ("limits", "numbers", "moments", "ranks", "passes", "growth", "ring", "due_bits")


class _View:
    """Replicas `first` to `end`, replayed one after another."""

    def __init__(self, st: State, first: int, end: int) -> None:
        self.st, self.replica, self.end = st, first, end
        self._start()

    def advance(self) -> int:
        """Replay until all are done or the host is needed; a code of `passes`."""
        while True:
            self.st["numbers"][state.EVENTS_LEFT] = EVENTS_BETWEEN_CHECKS
            code = int(event_loop.run(self.st.book))
            if code != passes.FINISHED or self.replica + 1 == self.end:
                return code
            self.replica += 1
            self._start()

    def _start(self) -> None:
        number, replica = self.st["numbers"], self.replica
        number[state.FIRST_REPLICA], number[state.LAST_REPLICA] = replica, replica + 1
        number[state.NEXT_SESSION] = replica
        number[state.SESSION_STRIDE] = self.st["limits"][state.NUM_REPLICAS]
        number[state.EXACT_HORIZON] = 1
        self.st["moments"][state.NOW] = 0.0


def replay_apart(
    st: State, pool: Pool, table: StepTable, exact: bool, should_stop: ShouldStop | None, threads: int
) -> bool:
    """Run every replica to its end; False when one needs the cache that was left out. Raises: as `drive`."""
    compile_once(event_loop.run, st.book)
    views = _views(st, threads)
    for view in views:
        table.lend_to(view.st, exact)
    waiting: Sequence[_View] = views
    while waiting:
        codes = list(map(_View.advance, waiting) if threads == 1 else pool_of(threads).map(_View.advance, waiting))
        if passes.NEED_CACHE in codes:
            return False
        asking = [(view, code) for view, code in zip(waiting, codes, strict=True) if code != passes.FINISHED]
        # Nobody reads the tables now. Where one grows, all need its new arrays.
        for view, code in asking:
            answer(code, view.st, pool, table, exact)
        for view, _ in asking:
            table.lend_to(view.st, exact)
        waiting = [view for view, _ in asking]
        check_stop(should_stop)
    if len(views) > 1:
        _gather(st, [view.st for view in views])
        table.lend_to(st, exact)
    return True


@lru_cache(maxsize=1)
def pool_of(threads: int) -> ThreadPoolExecutor:
    """Threads that keep their tables between calls."""
    return ThreadPoolExecutor(threads, thread_name_prefix="replay")


def _views(st: State, threads: int) -> list[_View]:
    """One on the state itself, or some for each thread: contiguous replicas, as evenly as they go."""
    replicas = int(st["limits"][state.NUM_REPLICAS])
    num = 1 if threads == 1 or st.rows is None else min(replicas, _VIEWS_PER_THREAD * threads)
    if num == 1:
        return [_View(st, 0, replicas)]
    firsts = [replicas * i // num for i in range(num + 1)]
    return [_View(_shared(st, first, (end - first) / replicas), first, end) for first, end in pairwise(firsts)]


def _shared(st: State, first: int, share: float) -> State:
    """A state on the same requests for a `share` of all replicas, from `first` on."""
    own = {name: st[name].copy() for name in _OWN}
    limits = own["limits"]
    if limits[state.NUM_COPIES] > 0:
        limits[state.COPIES_USED] = first * limits[state.NUM_DP] * limits[state.NUM_BLOCKS]
    room = max(_FIRST_GAPS, int(_GAPS_PER_REQUEST * share * len(st["requests"])))
    return st.sharing(gaps=np.empty((room, st["gaps"].shape[1])), **own)


def _gather(st: State, parts: Sequence[State]) -> None:
    """Put together what the parts counted for themselves."""
    number, moment = st["numbers"], st["moments"]
    used = [int(part["numbers"][state.GAPS_USED]) for part in parts]
    st["gaps"] = np.concatenate([part["gaps"][:length] for part, length in zip(parts, used, strict=True)])
    number[state.GAPS_USED] = sum(used)
    number[state.COMMITTED_PREFILL] = sum(int(part["numbers"][state.COMMITTED_PREFILL]) for part in parts)
    moment[state.LAST_EVENT] = max(float(part["moments"][state.LAST_EVENT]) for part in parts)
