"""Step times as tables a compiled replay can read, filled on demand by exact calls.

Fixed and polynomial timing need no table. Other timing is asked once per distinct prefill (n, isl, prefix). Decode
times are asked at knots, 16 per octave of mean context for every batch size that occurs, and interpolated between them,
when the model says that they depend on (n, mean context) only (`decode_row`); else once per distinct (n, total).
One table serves every replay with the same StepTimes object. Source: kernel specification, section 4.
"""

import random
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from workers.replay.fleet import StepTimes
from workers.replay.state import NONE, Times
from workers.replay.step_lookup import (
    CONSTANT,
    DECODE_MS,
    DECODE_TAG,
    HASH_MASK,
    HASH_USED,
    KNOTS,
    MEMO,
    NUM_CELLS,
    NUM_TIME_CONSTANTS,
    NUM_TIME_NUMBERS,
    POLYNOMIAL,
    POOL_TOKENS,
    PREFILL_MS,
    TIMING,
    cell_of,
    decode_duration,
    slot_of,
)
from workers.timing.fixed import FixedTimes
from workers.timing.polynomial import PolynomialTimes

_MEMO_AHEAD = 64
_KEPT_TABLES = 256


@runtime_checkable
class KnotTimes(StepTimes, Protocol):
    """Step times whose decode part depends on (n, mean context) only."""

    def decode_row(self, n: int, contexts: NDArray[np.int64]) -> NDArray[np.int64]:
        """ns of a decode pass of n requests at each floor-mean context."""


class StepTable:
    """The tables of one StepTimes object; `times` is what the compiled loop reads."""

    def __init__(self, source: StepTimes) -> None:
        self.source = source
        kind = np.zeros(NUM_TIME_NUMBERS, dtype=np.int64)
        constant = np.zeros(NUM_TIME_CONSTANTS)
        kind[TIMING] = KNOTS if isinstance(source, KnotTimes) else MEMO
        if isinstance(source, FixedTimes):
            kind[TIMING] = CONSTANT
            constant[PREFILL_MS], constant[DECODE_MS] = source.prefill_pass_ms, source.decode_pass_ms
        elif isinstance(source, PolynomialTimes):
            kind[TIMING] = POLYNOMIAL
            constant[POOL_TOKENS] = source.pool_tokens
        kind[HASH_MASK] = 255
        self.times = Times(
            kind=kind,
            constant=constant,
            row_of_n=np.full(64, NONE, dtype=np.int32),
            value=np.full((0, NUM_CELLS), np.nan),
            slope=np.full((0, NUM_CELLS), np.nan),
            prefill_key=np.full((256, 2), NONE, dtype=np.int64),
            prefill_value=np.zeros(256),
        )

    def learn_prefill(self, n: int, isl: int, prefix: int) -> None:
        """Ask one prefill time, ms."""
        self._insert((n << 32) | isl, prefix, self.source.prefill_ms(n, isl, prefix))

    def learn_decode(self, n: int, context_sum: int, steps: int) -> None:
        """Ask what `steps` decode passes of n requests need, context sums `context_sum`, `context_sum + n`, ..."""
        if self.times.kind[TIMING] == MEMO:
            for total in range(context_sum, context_sum + n * min(steps, _MEMO_AHEAD), n):
                self._insert(DECODE_TAG | n, total, self.source.decode_ms(n, total, total // n))
            return
        row = self._row(n)
        context, last = context_sum // n, context_sum // n + steps - 1
        cells = []
        while context <= last:
            cell, start, width = cell_of(context)
            if np.isnan(self.times.value[row, cell]):
                cells.append((cell, start, width))
            context = start + width
        self._fill(n, row, cells)

    def residual(self, samples: int = 20, seed: int = 0) -> float:
        """Largest relative error of `samples` interpolated decode times against direct calls; 0 where nothing interpolates."""
        known = np.argwhere(~np.isnan(self.times.value))
        if self.times.kind[TIMING] != KNOTS or known.size == 0:
            return 0.0
        draw = random.Random(seed)
        worst = 0.0
        batch_of_row = {int(row): n for n, row in enumerate(self.times.row_of_n) if row != NONE}
        for _ in range(samples):
            row, cell = (int(i) for i in known[draw.randrange(len(known))])
            n, (start, width) = batch_of_row[row], _extent_of(cell)
            context = start + draw.randrange(width)
            exact = self.source.decode_ms(n, context * n, context)
            worst = max(worst, abs(float(decode_duration(self.times, n, context * n)) / exact - 1.0))
        return worst

    def to_arrays(self) -> dict[str, NDArray[np.generic]]:
        """Everything learnt, by name, for the timing room to keep on disk."""
        return {name: getattr(self.times, name) for name in Times._fields}

    @classmethod
    def from_arrays(cls, source: StepTimes, arrays: dict[str, NDArray[np.generic]]) -> "StepTable":
        """A table of `source` that already knows what `to_arrays` gave. Raises: KeyError for another layout."""
        table = cls(source)
        table.times = Times(**{name: np.array(arrays[name]) for name in Times._fields})
        return table

    def _insert(self, first: int, second: int, duration_ms: float) -> None:
        times = self.times
        if 2 * times.kind[HASH_USED] >= times.prefill_value.size:
            self._double()
            times = self.times
        slot = slot_of(times.prefill_key, times.kind[HASH_MASK], first, second)
        if times.prefill_key[slot, 0] == NONE:
            times.kind[HASH_USED] += 1
        times.prefill_key[slot] = first, second
        times.prefill_value[slot] = duration_ms

    def _double(self) -> None:
        old = self.times
        size = 4 * old.prefill_value.size
        old.kind[HASH_MASK] = size - 1
        keys, values = np.full((size, 2), NONE, dtype=np.int64), np.zeros(size)
        for i in np.flatnonzero(old.prefill_key[:, 0] != NONE):
            slot = slot_of(keys, size - 1, old.prefill_key[i, 0], old.prefill_key[i, 1])
            keys[slot], values[slot] = old.prefill_key[i], old.prefill_value[i]
        self.times = old._replace(prefill_key=keys, prefill_value=values)

    def _row(self, n: int) -> int:
        times = self.times
        if n >= times.row_of_n.size:
            longer = np.full(2 * n, NONE, dtype=np.int32)
            longer[: times.row_of_n.size] = times.row_of_n
            times = times._replace(row_of_n=longer)
        if times.row_of_n[n] == NONE:
            used = int((times.row_of_n != NONE).sum())
            if used == len(times.value):
                more = np.full((max(16, used), NUM_CELLS), np.nan)
                times = times._replace(value=np.vstack([times.value, more]), slope=np.vstack([times.slope, more]))
            times.row_of_n[n] = used
        self.times = times
        return int(times.row_of_n[n])

    def _fill(self, n: int, row: int, cells: list[tuple[int, int, int]]) -> None:
        source = self.source
        assert isinstance(source, KnotTimes)
        knots = sorted({start for _, start, _ in cells} | {start + width for _, start, width in cells if width > 1})
        ns = dict(zip(knots, source.decode_row(n, np.array(knots, dtype=np.int64)).tolist(), strict=True))
        for cell, start, width in cells:
            self.times.value[row, cell] = ns[start] / 1e6
            self.times.slope[row, cell] = (ns[start + width] - ns[start]) / 1e6 / width if width > 1 else 0.0


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
