"""Step times from AI Configurator's measured operator data: exact calls, memoised, kept on disk.

One compiled engine per parallel shape answers `prefill(n, isl, prefix)` and `decode(n, context)` in 2 to 20 us;
compiling the first one in a process costs 1 to 2 s. `AicTimes` asks each distinct question once, in whole nanoseconds,
and stores the answers, so a worker that meets a known shape again needs neither the package nor its tables.

Source: replay-engine spec, section 10 (op-level timing); kernel spec, section 4.
"""

import io
import time
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import Any, Protocol, cast
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from app.schemas.deployment import ParallelShape
from workers.errors import UnsupportedError
from workers.timing import disk_cache, perf_data
from workers.timing.answers import Answers

_MAX_PERSISTED_ANSWERS = 1_000_000
"""Per engine shape; 16 MB on disk."""

_PROBE_TOKENS = 1024
_TOKEN_BITS = 21
_TOKENS = (1 << _TOKEN_BITS) - 1
_WAITING_S = 5.0
_KIND = "step-answers"


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """Everything a step time depends on besides the batch; equal identities share memory and disk entries."""

    distribution: str
    package_version: str
    data_version: str
    model: str
    hardware: str
    backend: str
    tp: int
    pp: int
    attention_dp: int
    moe_tp: int
    moe_ep: int
    nextn: int

    def text(self) -> str:
        """Canonical form for disk keys."""
        return "|".join(str(part) for part in astuple(self))


class _NativeEngine(Protocol):
    def predict_prefill_latency(self, bs: int, isl: int, prefix: int, /) -> float: ...
    def predict_decode_latency(self, bs: int, isl: int, osl: int, /) -> float: ...


def engine_identity(
    model: str, hardware: str, backend: str, shape: ParallelShape, nextn: int | None = None
) -> EngineIdentity:
    """Identity of one engine with the installed package and its default data version.

    Raises: UnsupportedError(NO_PERF_DATA) for an unknown model, or a pair of hardware and backend without data.
    """
    perf_data.require_model(model)
    used = perf_data.package()
    version = perf_data.data_version(hardware, backend)
    return EngineIdentity(
        used.distribution, used.version, version, model, hardware, backend,
        shape.tp, shape.pp, shape.attention_dp, shape.moe_tp, shape.moe_ep, nextn or 0,
    )  # fmt: skip


@lru_cache(maxsize=512)
def aic_times(identity: EngineIdentity) -> "AicTimes":
    """The process-wide step times of an identity."""
    return AicTimes(identity)


@lru_cache(maxsize=4096)
def has_times(identity: EngineIdentity) -> bool:
    """Whether the package can time this shape at all: one prefill and one decode question, the answer kept on disk."""
    stored = disk_cache.read("timed", identity.text())
    if stored is not None:
        return stored == b"yes"
    times = aic_times(identity)
    try:
        times.prefill_ns(1, _PROBE_TOKENS, 0)
        times.decode_ns(1, _PROBE_TOKENS)
    except UnsupportedError:
        disk_cache.write("timed", identity.text(), b"no")
        return False
    disk_cache.write("timed", identity.text(), b"yes")
    return True


class AicTimes:
    """Step times of one engine shape; implements `workers.replay.fleet.StepTimes`.

    Raises, from every method that answers: UnsupportedError when the package has no data for the question.
    """

    def __init__(self, identity: EngineIdentity) -> None:
        self.key = identity
        self._native: _NativeEngine | None = None
        self._prefills, self._decodes = _stored(identity)
        self._persisted_s = time.monotonic()
        _living.add(self)

    def prefill_ms(self, n: int, isl: int, prefix: int) -> float:
        """ms of one pass over n prompts of floor-mean length isl (prefix included) and floor-mean prefix."""
        return self.prefill_ns(n, isl, prefix) / 1e6

    def prefill_ns(self, n: int, isl: int, prefix: int) -> int:
        """As `prefill_ms`, whole nanoseconds; 0 when nothing is left to compute."""
        if n <= 0 or isl <= prefix:
            return 0
        if isl > _TOKENS:
            return self._ask_prefill(n, isl, prefix)
        question = (n << 2 * _TOKEN_BITS) | (isl << _TOKEN_BITS) | prefix
        answer = self._prefills.get(question)
        if answer is None:
            answer = self._ask_prefill(n, isl, prefix)
            self._prefills.put(question, answer)
        return answer

    def prefill_many(self, questions: Iterable[tuple[int, int, int]]) -> NDArray[np.int64]:
        """ns of many (n, isl, prefix), in order: int64 [len(questions)]."""
        return np.fromiter((self.prefill_ns(int(n), int(i), int(p)) for n, i, p in questions), dtype=np.int64)

    def known_prefills(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """What was on disk: int64 [N, 3] of (n, isl, prefix), and ns [N]."""
        questions, ns = self._prefills.between(np.array([0]), np.array([np.iinfo(np.int64).max]))
        parts = (questions >> 2 * _TOKEN_BITS, (questions >> _TOKEN_BITS) & _TOKENS, questions & _TOKENS)
        return np.stack(parts, axis=1), ns

    def decode_ms(self, n: int, total_context: int, mean_context: int) -> float:
        """ms of one decode pass over n requests of floor-mean context `mean_context` tokens."""
        del total_context  # Op-level timing knows the mean only.
        return self.decode_ns(n, mean_context) / 1e6

    def decode_ns(self, n: int, context: int) -> int:
        """As `decode_ms`, whole nanoseconds; 0 for an empty batch."""
        if n <= 0:
            return 0
        question = (n << 32) | context
        answer = self._decodes.get(question)
        if answer is None:
            answer = self._ask_decode(n, context)
            self._decodes.put(question, answer)
        return answer

    def decode_row(self, n: int, contexts: NDArray[np.int64]) -> NDArray[np.int64]:
        """ns of one decode pass of n requests at each floor-mean context: int64, shape of `contexts` (1-D)."""
        answers, is_known = self._decodes.row((n << 32) | contexts)
        for i in np.flatnonzero(~is_known).tolist():
            answers[i] = self.decode_ns(n, int(contexts[i]))
        return answers

    def known_decodes(self, sizes: range, contexts: range) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """What was on disk of decode passes: (n, context) int64 [N, 2], ascending, and ns [N]."""
        rows = np.array(sizes, dtype=np.int64) << 32
        questions, ns = self._decodes.between(rows | contexts.start, rows | contexts.stop)
        return np.stack([questions >> 32, questions & 0xFFFF_FFFF], axis=1), ns

    def persist(self) -> None:
        """Write what this process learned since the last call, merged with what others stored meanwhile."""
        if not self._prefills.num_new + self._decodes.num_new:
            return
        prefills, decodes = _stored(self.key)
        self._prefills.merge(prefills)
        self._decodes.merge(decodes)
        if len(self._prefills) + len(self._decodes) <= _MAX_PERSISTED_ANSWERS:
            file = io.BytesIO()
            self._prefills.write_to(file)
            self._decodes.write_to(file)
            disk_cache.write(_KIND, self.key.text(), file.getvalue())
        self._persisted_s = time.monotonic()

    @property
    def has_grown(self) -> bool:
        """Persisting is worth its cost: a tenth of what this process knows is new, or some of it waits for seconds."""
        num_new = self._prefills.num_new + self._decodes.num_new
        is_waiting = num_new > 0 and time.monotonic() - self._persisted_s > _WAITING_S
        return is_waiting or 10 * num_new > len(self._prefills) + len(self._decodes)

    def _ask_prefill(self, n: int, isl: int, prefix: int) -> int:
        engine = self._engine()
        try:
            return _whole_ns(engine.predict_prefill_latency(n, isl, prefix))
        except Exception as error:
            raise perf_data.unsupported(error) from error

    def _ask_decode(self, n: int, context: int) -> int:
        engine = self._engine()
        try:
            # One step at length `context`: the package takes the length before the step and two output tokens.
            return _whole_ns(engine.predict_decode_latency(n, context - 1, 2))
        except Exception as error:
            raise perf_data.unsupported(error) from error

    def _engine(self) -> _NativeEngine:
        if self._native is None:
            self._native = _native_engine(self.key)
        return self._native


def _stored(identity: EngineIdentity) -> tuple[Answers, Answers]:
    """Prefill and decode answers on disk."""
    payload = disk_cache.read(_KIND, identity.text())
    if payload is None:
        return Answers(), Answers()
    file = io.BytesIO(payload)
    return Answers.read_from(file), Answers.read_from(file)


_living: WeakSet[AicTimes] = WeakSet()


def persist_rest() -> None:
    """Persist everything that any AicTimes of this process has learned; for its end."""
    for entry in list(_living):
        entry.persist()


def persist_all(times: Iterable[object]) -> None:
    """Persist every AicTimes among `times` that has learned enough to be worth a rewrite of its file."""
    for entry in times:
        if isinstance(entry, AicTimes) and entry.has_grown:
            entry.persist()


def _whole_ns(ms: float) -> int:
    return int(ms * 1e6 + 0.5)


@lru_cache(maxsize=512)
def _native_engine(identity: EngineIdentity) -> _NativeEngine:
    """Build from the stored compilation if there is one (0.05 s), else compile (up to 2 s) and store it."""
    used = perf_data.package()
    stored = disk_cache.read("engines", identity.text())
    try:
        spec = stored if stored is not None else _compile(used, identity)
        native = used.load().AicEngine.from_spec(spec)
    except Exception as error:
        raise perf_data.unsupported(error) from error
    if stored is None:
        disk_cache.write("engines", identity.text(), spec)
    return cast(_NativeEngine, native)


def _compile(used: perf_data.PerfDataPackage, identity: EngineIdentity) -> bytes:
    # An unsharded MoE layer is left to the package's default, as the peer leaves it.
    sharded = identity.moe_tp * identity.moe_ep > 1
    compile_engine: Any = used.load("sdk.engine").compile_engine
    spec = compile_engine(
        identity.model,
        identity.hardware,
        identity.backend,
        backend_version=identity.data_version,
        tp_size=identity.tp,
        pp_size=identity.pp,
        attention_dp_size=identity.attention_dp,
        moe_tp_size=identity.moe_tp if sharded else None,
        moe_ep_size=identity.moe_ep if sharded else None,
        nextn=identity.nextn,
    )
    return bytes(spec)
