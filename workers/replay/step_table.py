"""Step times as tables a compiled replay can read, filled on demand by exact calls.

Fixed and polynomial timing need no table. Other timing is asked once per distinct prefill (n, isl, prefix). Where the
model says that decode times depend on (n, mean context) only (`decode_row`), they are asked one by one for batches of few
distinct request shapes or few output tokens, which visit few contexts; for others (long traces) at knots, 16 per octave of
mean context for every batch size that occurs, and interpolated between them. Other models are asked once per distinct
(n, context sum). One table serves every replay with the same StepTimes object. Source: kernel specification, section 4.
"""

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from workers.replay.fleet import StepTimes
from workers.replay.kept import Kept
from workers.replay.state import NONE, State
from workers.replay.step_lookup import (
    CHUNK,
    CONSTANT,
    DECODE_MS,
    DECODE_TAG,
    EXACT,
    EXACT_CHUNKS,
    EXACT_ROWS,
    EXACT_WIDTH,
    FINE,
    HASH_MASK,
    HASH_USED,
    KEY_A,
    KNOTS,
    MEMO,
    NUM_CELLS,
    NUM_RATES,
    NUM_ROWS,
    NUM_TIMING,
    POLYNOMIAL,
    POOL_TOKENS,
    PREFILL_MS,
    TIMING,
    cell_of,
    insert_all,
)
from workers.timing.fixed import FixedTimes
from workers.timing.polynomial import PolynomialTimes

_AHEAD = 64
_ROWS_AT_ONCE, _CONTEXTS_AT_ONCE = 16, 1024
_KEPT_TABLES = 256


@runtime_checkable
class KnotTimes(StepTimes, Protocol):
    """Step times whose decode part depends on (n, mean context) only."""

    def decode_row(self, n: int, contexts: NDArray[np.int64]) -> NDArray[np.int64]:
        """ns of a decode pass of n requests at each floor-mean context."""

    def known_decodes(self, sizes: range, contexts: range) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(n, context) int64 [N, 2] within both ranges, ascending, whose times cost nothing to ask, and ns."""

    def known_prefills(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(n, isl, prefix) int64 [N, 3] whose times cost nothing to ask, and ns."""


class StepTable:
    """The tables of one StepTimes object; layouts see step_lookup.

    timing: int64. rates: float64. decode: float64 [batch sizes, NUM_CELLS, 2]. memo: int64 [H, 4].
    """

    def __init__(self, source: StepTimes) -> None:
        self.source = source
        self.timing = np.zeros(NUM_TIMING, dtype=np.int64)
        self.rates = np.zeros(NUM_RATES)
        self._knots = source if isinstance(source, KnotTimes) else None
        self.timing[TIMING] = KNOTS if self._knots else MEMO
        if isinstance(source, FixedTimes):
            self.timing[TIMING] = CONSTANT
            self.rates[PREFILL_MS], self.rates[DECODE_MS] = source.prefill_pass_ms, source.decode_pass_ms
        elif isinstance(source, PolynomialTimes):
            self.timing[TIMING] = POLYNOMIAL
            self.rates[POOL_TOKENS] = source.pool_tokens
        self.timing[HASH_MASK] = 255
        self.decode = np.zeros((0, NUM_CELLS, 2))
        self.exact_index = np.full((0, 64), NONE, dtype=np.int32)
        self.exact_values = np.full((0, CHUNK), np.nan)
        self.exact_rates = np.full((0, CHUNK), np.nan)
        self.exact_facts = np.full(0, np.nan)
        self.memo = np.full((256, 4), NONE, dtype=np.int64)
        self._has_prefills = False
        self._has_decodes: set[tuple[int, int]] = set()

    def lend_to(self, st: State, exact: bool) -> None:
        """Make a replay read these tables as they are now; decode times asked one by one if `exact`, else interpolated."""
        timing = self.timing
        if exact and timing[TIMING] == KNOTS:
            timing = timing.copy()
            timing[TIMING] = EXACT
        st["timing"], st["rates"] = timing, self.rates
        st["exact_index"], st["exact_values"] = self.exact_index.reshape(-1), self.exact_values.reshape(-1)
        st["exact_rates"], st["exact_facts"] = self.exact_rates.reshape(-1), self.exact_facts
        st["decode_table"] = self.decode.reshape(-1)
        st["memo"] = self.memo

    def learn_prefill(self, n: int, isl: int, prefix: int) -> None:
        """Ask one prefill time, ms; with the first, everything that costs nothing to ask."""
        if self._knots and not self._has_prefills:
            self._has_prefills = True
            self._insert_known(*self._knots.known_prefills())
        self._insert((n << 32) | isl, prefix, self.source.prefill_ms(n, isl, prefix))

    def learn_decode(self, n: int, context_sum: int, steps: int, exact: bool) -> None:
        """Ask what `steps` decode passes of n requests need, context sums `context_sum`, `context_sum + n`, ..."""
        if self.timing[TIMING] == MEMO:
            for total in range(context_sum, context_sum + n * min(steps, _AHEAD), n):
                self._insert(DECODE_TAG | n, total, self.source.decode_ms(n, total, total // n))
            return
        if exact:
            self._learn_exact(n, context_sum // n, min(steps, _AHEAD))
            return
        self._make_row(n)
        context, last = context_sum // n, context_sum // n + steps - 1
        cells = []
        while context <= last:
            cell, start, width = cell_of(context)
            if np.isnan(self.decode[n, cell, 0]):
                cells.append((cell, start, width))
            context = start + width
        self._fill(n, cells)

    def _insert(self, first: int, second: int, duration_ms: float) -> None:
        self._make_memo_room(1)
        row = np.array([[first, second, np.float64(duration_ms).view(np.int64)]])
        self.timing[HASH_USED] += insert_all(self.memo, self.timing[HASH_MASK], row)

    def _insert_known(self, questions: NDArray[np.int64], ns: NDArray[np.int64]) -> None:
        self._make_memo_room(len(ns))
        rows = np.stack([(questions[:, 0] << 32) | questions[:, 1], questions[:, 2], (ns / 1e6).view(np.int64)], axis=1)
        self.timing[HASH_USED] += insert_all(self.memo, self.timing[HASH_MASK], rows)

    def _make_memo_room(self, more: int) -> None:
        """Keep the open-addressing table at most half full."""
        size, needed = len(self.memo), 2 * (int(self.timing[HASH_USED]) + more)
        if needed < size:
            return
        while needed >= size:
            size *= 4
        memo = np.full((size, 4), NONE, dtype=np.int64)
        insert_all(memo, size - 1, self.memo[self.memo[:, KEY_A] != NONE])
        self.timing[HASH_MASK] = size - 1
        self.memo = memo

    def _make_row(self, n: int) -> None:
        rows = len(self.decode)
        if n >= rows:
            more = np.full((max(n + 1 - rows, rows, 64), NUM_CELLS, 2), np.nan)
            self.decode = np.concatenate([self.decode, more])
            self.timing[NUM_ROWS] = len(self.decode)

    def _learn_exact(self, n: int, context: int, steps: int) -> None:
        """Ask `steps` contexts from `context` on; first, all around them that cost nothing to ask."""
        assert self._knots is not None
        for window in range(context // _CONTEXTS_AT_ONCE, (context + steps - 1) // _CONTEXTS_AT_ONCE + 1):
            block = n // _ROWS_AT_ONCE
            if (block, window) not in self._has_decodes:
                self._has_decodes.add((block, window))
                questions, ns = self._knots.known_decodes(
                    range(block * _ROWS_AT_ONCE, (block + 1) * _ROWS_AT_ONCE),
                    range(window * _CONTEXTS_AT_ONCE, (window + 1) * _CONTEXTS_AT_ONCE),
                )
                self._store_exact(questions[:, 0], questions[:, 1], ns)
        wanted = np.arange(context, context + steps)
        sizes = np.full(steps, n)
        places = self._exact_places(sizes, wanted)  # before the values are read: it may make room among them
        is_unknown = np.isnan(self.exact_values.reshape(-1)[places])
        if is_unknown.any():
            self._store_exact(sizes[is_unknown], wanted[is_unknown], self._knots.decode_row(n, wanted[is_unknown]))

    def _store_exact(self, sizes: NDArray[np.int64], contexts: NDArray[np.int64], ns: NDArray[np.int64]) -> None:
        places, ms = self._exact_places(sizes, contexts), ns / 1e6
        self.exact_values.reshape(-1)[places] = ms
        self.exact_rates.reshape(-1)[places] = 1000.0 / ms
        self.exact_facts[places // CHUNK] = np.nan

    def _exact_places(self, sizes: NDArray[np.int64], contexts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Flat places in exact_values of ascending (batch size, context); their chunks are made."""
        if not contexts.size:
            return contexts
        self._widen_index(int(sizes[-1]) + 1, int(contexts.max()) // CHUNK + 1)
        index, cells = self.exact_index.reshape(-1), sizes * self.exact_index.shape[1] + contexts // CHUNK
        is_first = np.concatenate([[True], cells[1:] != cells[:-1]])
        missing = cells[is_first & (index[cells] == NONE)]
        used = int(self.timing[EXACT_CHUNKS])
        if used + len(missing) > len(self.exact_values):
            more = np.full((max(64, used, len(missing)), CHUNK), np.nan)
            self.exact_values = np.concatenate([self.exact_values, more])
            self.exact_rates = np.concatenate([self.exact_rates, more])
            self.exact_facts = np.full(len(self.exact_values), np.nan)
        index[missing] = np.arange(used, used + len(missing))
        self.timing[EXACT_CHUNKS] += len(missing)
        return np.asarray(index[cells].astype(np.int64) * CHUNK + contexts % CHUNK, dtype=np.int64)

    def _widen_index(self, rows: int, width: int) -> None:
        have_rows, have_width = self.exact_index.shape
        if rows > have_rows or width > have_width:
            shape = (max(have_rows, 2 * rows) if rows > have_rows else have_rows, max(have_width, width))
            wider = np.full(shape, NONE, dtype=np.int32)
            wider[:have_rows, :have_width] = self.exact_index
            self.exact_index = wider
        self.timing[EXACT_ROWS], self.timing[EXACT_WIDTH] = self.exact_index.shape

    def _fill(self, n: int, cells: list[tuple[int, int, int]]) -> None:
        assert self._knots is not None
        knots = sorted({start for _, start, _ in cells} | {start + width for _, start, width in cells if width > 1})
        ns = dict(zip(knots, self._knots.decode_row(n, np.array(knots, dtype=np.int64)).tolist(), strict=True))
        for cell, start, width in cells:
            slope = (ns[start + width] - ns[start]) / 1e6 / width if width > 1 else 0.0
            self.decode[n, cell] = ns[start] / 1e6, slope


def warm() -> None:
    """Compile or load what filling tables needs."""
    cell_of(FINE)
    insert_all(np.full((2, 4), NONE, dtype=np.int64), np.int64(1), np.zeros((1, 3), dtype=np.int64))


_tables = Kept[StepTable](_KEPT_TABLES)


def step_table(source: StepTimes) -> StepTable:
    """The table of a StepTimes object; each thread has its own, as replays add to it."""
    return _tables.of((source,), lambda: StepTable(source))
