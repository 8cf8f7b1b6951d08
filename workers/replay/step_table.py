"""Step times as tables a compiled replay can read, filled on demand by exact calls.

Fixed and polynomial timing need no table. Other timing is asked once per distinct prefill (n, isl, prefix). Where the
model says that decode times depend on (n, mean context) only (`decode_row`), they are asked one by one for batches of few
distinct request shapes, which visit few contexts; for others (traces) at knots, 16 per octave of mean context for every
batch size that occurs, and interpolated between them. Other models are asked once per distinct (n, context sum).
One table serves every replay with the same StepTimes object. Source: kernel specification, section 4.
"""

import random
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from workers.replay.fleet import StepTimes
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
    HASH_MASK,
    HASH_USED,
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
    slot_of,
)
from workers.timing.fixed import FixedTimes
from workers.timing.polynomial import PolynomialTimes

_ARRAYS = ("timing", "rates", "decode", "exact_index", "exact_values", "keys", "values")
_AHEAD = 64
_KEPT_TABLES = 256


@runtime_checkable
class KnotTimes(StepTimes, Protocol):
    """Step times whose decode part depends on (n, mean context) only."""

    def decode_row(self, n: int, contexts: NDArray[np.int64]) -> NDArray[np.int64]:
        """ns of a decode pass of n requests at each floor-mean context."""


class StepTable:
    """The tables of one StepTimes object; layouts see step_lookup.

    timing: int64. rates: float64. decode: float64 [batch sizes, NUM_CELLS, 2]. keys: int64 [H, 2]. values: float64 [H].
    """

    def __init__(self, source: StepTimes) -> None:
        self.source = source
        self.timing = np.zeros(NUM_TIMING, dtype=np.int64)
        self.rates = np.zeros(NUM_RATES)
        self.timing[TIMING] = KNOTS if isinstance(source, KnotTimes) else MEMO
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
        self.keys = np.full((256, 2), NONE, dtype=np.int64)
        self.values = np.zeros(256)

    def lend_to(self, st: State, exact: bool) -> None:
        """Make a replay read these tables as they are now; decode times asked one by one if `exact`, else interpolated."""
        timing = self.timing
        if exact and timing[TIMING] == KNOTS:
            timing = timing.copy()
            timing[TIMING] = EXACT
        st["timing"], st["rates"] = timing, self.rates
        st["exact_index"], st["exact_values"] = self.exact_index.reshape(-1), self.exact_values.reshape(-1)
        st["decode_table"] = self.decode.reshape(-1)
        st["memo_keys"], st["memo_values"] = self.keys, self.values

    def learn_prefill(self, n: int, isl: int, prefix: int) -> None:
        """Ask one prefill time, ms."""
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

    def residual(self, samples: int = 20, seed: int = 0) -> float:
        """Largest relative error of `samples` interpolated decode times against direct calls; 0 if nothing interpolates."""
        known = np.argwhere(~np.isnan(self.decode[:, :, 0])) if self.timing[TIMING] == KNOTS else np.zeros(0)
        if known.size == 0:
            return 0.0
        draw = random.Random(seed)
        worst = 0.0
        for _ in range(samples):
            n, cell = (int(i) for i in known[draw.randrange(len(known))])
            start, width = _extent_of(cell)
            offset = draw.randrange(width)
            value, slope = self.decode[n, cell]
            exact = self.source.decode_ms(n, (start + offset) * n, start + offset)
            worst = max(worst, abs(float(value + slope * offset) / exact - 1.0))
        return worst

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Everything learnt, by name, for the timing room to keep on disk."""
        return {name: getattr(self, name) for name in _ARRAYS}

    @classmethod
    def from_arrays(cls, source: StepTimes, arrays: dict[str, NDArray[Any]]) -> "StepTable":
        """A table of `source` that already knows what `to_arrays` gave. Raises: KeyError, ValueError for another layout."""
        table = cls(source)
        for name in _ARRAYS:
            stored = np.array(arrays[name])
            if stored.dtype != getattr(table, name).dtype or stored.ndim != getattr(table, name).ndim:
                raise ValueError(f"step table of another layout: {name}")
            setattr(table, name, stored)
        return table

    def _insert(self, first: int, second: int, duration_ms: float) -> None:
        if 2 * self.timing[HASH_USED] >= self.values.size:
            self._grow_memo()
        slot = slot_of(self.keys, self.timing[HASH_MASK], first, second)
        if self.keys[slot, 0] == NONE:
            self.timing[HASH_USED] += 1
        self.keys[slot] = first, second
        self.values[slot] = duration_ms

    def _grow_memo(self) -> None:
        size = 4 * self.values.size
        self.timing[HASH_MASK] = size - 1
        keys, values = np.full((size, 2), NONE, dtype=np.int64), np.zeros(size)
        for i in np.flatnonzero(self.keys[:, 0] != NONE):
            slot = slot_of(keys, size - 1, self.keys[i, 0], self.keys[i, 1])
            keys[slot], values[slot] = self.keys[i], self.values[i]
        self.keys, self.values = keys, values

    def _make_row(self, n: int) -> None:
        rows = len(self.decode)
        if n >= rows:
            more = np.full((max(n + 1 - rows, rows, 64), NUM_CELLS, 2), np.nan)
            self.decode = np.concatenate([self.decode, more])
            self.timing[NUM_ROWS] = len(self.decode)

    def _learn_exact(self, n: int, context: int, steps: int) -> None:
        source = self.source
        assert isinstance(source, KnotTimes)
        first, last = context // CHUNK, (context + steps - 1) // CHUNK
        self._widen_index(n + 1, last + 1)
        for chunk in range(first, last + 1):
            if self.exact_index[n, chunk] == NONE:
                used = int(self.timing[EXACT_CHUNKS])
                if used == len(self.exact_values):
                    self.exact_values = np.concatenate([self.exact_values, np.full((max(64, used), CHUNK), np.nan)])
                self.exact_index[n, chunk] = used
                self.timing[EXACT_CHUNKS] += 1
            begin, end = max(context, chunk * CHUNK), min(context + steps, (chunk + 1) * CHUNK)
            row = self.exact_values[self.exact_index[n, chunk]]
            wanted = np.arange(begin, end)
            wanted = wanted[np.isnan(row[wanted - chunk * CHUNK])]
            if wanted.size:
                row[wanted - chunk * CHUNK] = source.decode_row(n, wanted) / 1e6

    def _widen_index(self, rows: int, width: int) -> None:
        have_rows, have_width = self.exact_index.shape
        if rows > have_rows or width > have_width:
            shape = (max(have_rows, 2 * rows) if rows > have_rows else have_rows, max(have_width, width))
            wider = np.full(shape, NONE, dtype=np.int32)
            wider[:have_rows, :have_width] = self.exact_index
            self.exact_index = wider
        self.timing[EXACT_ROWS], self.timing[EXACT_WIDTH] = self.exact_index.shape

    def _fill(self, n: int, cells: list[tuple[int, int, int]]) -> None:
        source = self.source
        assert isinstance(source, KnotTimes)
        knots = sorted({start for _, start, _ in cells} | {start + width for _, start, width in cells if width > 1})
        ns = dict(zip(knots, source.decode_row(n, np.array(knots, dtype=np.int64)).tolist(), strict=True))
        for cell, start, width in cells:
            slope = (ns[start + width] - ns[start]) / 1e6 / width if width > 1 else 0.0
            self.decode[n, cell] = ns[start] / 1e6, slope


def _extent_of(cell: int) -> tuple[int, int]:
    """(first context, width) of a cell number."""
    octave, step = divmod(cell - 32, 16)
    if octave < 0:
        return cell, 1
    return (16 + step) << (octave + 1), 1 << (octave + 1)


_tables: dict[int, StepTable] = {}


def step_table(source: StepTimes) -> StepTable:
    """The process-wide table of a StepTimes object; the oldest goes when there are too many."""
    table = _tables.get(id(source))
    if table is None or table.source is not source:
        while len(_tables) >= _KEPT_TABLES:
            del _tables[next(iter(_tables))]
        table = _tables[id(source)] = StepTable(source)
    return table
