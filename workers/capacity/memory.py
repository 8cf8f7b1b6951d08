"""How much KV cache one rank holds: AI Configurator's memory model, asked once per question and kept on disk.

Source: replay-engine spec, section 11; traffic spec, section "kv_load_ratio".
"""

import json
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from app.schemas.deployment import ParallelShape
from app.schemas.status import ReasonCode
from workers.errors import EvaluationError, InfeasibleError, UnsupportedError
from workers.timing import disk_cache, perf_data

GIB = 2**30
DEFAULT_MAX_NUM_BATCHED_TOKENS = 8192
DEFAULT_MAX_NUM_SEQS = 256
DEFAULT_MEMORY_FRACTION = 0.9

_MEASURING_CAPACITY_BYTES = 2**50
"""A GPU memory in which everything fits: makes the package state its breakdown even when the real GPU is too small."""


@dataclass(frozen=True, slots=True)
class KvCapacity:
    """KV room of one rank and what the rest of its GPU memory is spent on."""

    tokens_per_rank: int
    kv_bytes_per_token: float
    kv_budget_bytes: int
    gpu_bytes: int
    weights_bytes: int
    activations_bytes: int
    runtime_bytes: int
    communication_bytes: int


@dataclass(frozen=True, slots=True)
class _Question:
    model: str
    hardware: str
    backend: str
    data_version: str
    tp: int
    pp: int
    attention_dp: int
    moe_tp: int
    moe_ep: int
    max_num_batched_tokens: int
    max_num_seqs: int
    memory_fraction: float
    nextn: int

    @property
    def file_identity(self) -> str:
        used = perf_data.package()
        scope = (used.distribution, used.version, self.data_version, self.model, self.hardware, self.backend)
        return "|".join(scope)

    @property
    def entry(self) -> str:
        return "|".join(str(value) for value in list(asdict(self).values())[4:])


def kv_capacity(
    model: str,
    hardware: str,
    backend: str,
    shape: ParallelShape,
    *,
    max_num_batched_tokens: int = DEFAULT_MAX_NUM_BATCHED_TOKENS,
    max_num_seqs: int = DEFAULT_MAX_NUM_SEQS,
    memory_fraction: float = DEFAULT_MEMORY_FRACTION,
    nextn: int | None = None,
) -> KvCapacity:
    """KV capacity of one rank.

    Args: memory_fraction, of total GPU memory for vllm and sglang, of what the model leaves free for trtllm.
    Raises: InfeasibleError(NO_KV_BUDGET), with the numbers in GiB, if nothing is left for the cache;
        UnsupportedError(BACKEND_CANNOT_RUN_SHAPE) if heads or quantized experts do not divide;
        UnsupportedError(NO_PERF_DATA) if the package does not know the model, hardware or backend.
    """
    perf_data.require_model(model)
    version = perf_data.data_version(hardware, backend)
    question = _Question(
        model, hardware, backend, version, shape.tp, shape.pp, shape.attention_dp, shape.moe_tp, shape.moe_ep,
        max_num_batched_tokens, max_num_seqs, float(memory_fraction), nextn or 0,
    )  # fmt: skip
    answer = _answer(question)
    if isinstance(answer, KvCapacity):
        return answer
    raise _error(answer)


def kv_tokens_per_rank(
    model: str,
    hardware: str,
    backend: str,
    shape: ParallelShape,
    *,
    max_num_batched_tokens: int = DEFAULT_MAX_NUM_BATCHED_TOKENS,
    max_num_seqs: int = DEFAULT_MAX_NUM_SEQS,
    memory_fraction: float = DEFAULT_MEMORY_FRACTION,
    nextn: int | None = None,
) -> int:
    """Tokens one rank's KV cache holds, before rounding down to whole blocks; errors as `kv_capacity`."""
    return kv_capacity(
        model,
        hardware,
        backend,
        shape,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        memory_fraction=memory_fraction,
        nextn=nextn,
    ).tokens_per_rank


@lru_cache(maxsize=1024)
def kv_transfer_bytes_per_token(model: str, shape: ParallelShape) -> int:
    """KV bytes per token and rank that a prefill-to-decode hand-off moves, from the model's configuration alone.

    The peer's "auto" value. It follows the checkpoint's base dtype, so it may be twice `KvCapacity.kv_bytes_per_token`
    where the engine would keep an 8-bit cache.

    Raises: UnsupportedError(NO_PERF_DATA) if the model or its cache geometry is unknown.
    """
    perf_data.require_model(model)
    estimator = perf_data.package().load("sdk.memory").NaiveKVCacheEstimator
    try:
        value = estimator.from_model_path(
            model,
            tp_size=shape.tp,
            pp_size=shape.pp,
            moe_tp_size=shape.moe_tp,
            moe_ep_size=shape.moe_ep,
            allow_hf_config_download=False,
        ).kv_bytes_per_token()
    except Exception as error:
        raise perf_data.unsupported(error) from error
    if not value:
        raise UnsupportedError(ReasonCode.NO_PERF_DATA, f"KV bytes per token of {model} cannot be derived")
    return int(value)


@lru_cache(maxsize=65_536)
def _answer(question: _Question) -> KvCapacity | str:
    """The capacity, or the refusal as JSON text (so that a cached refusal is raised anew each time)."""
    stored = _file(question.file_identity).get(question.entry)
    if stored is not None:
        return json.dumps(stored) if "code" in stored else KvCapacity(**stored)
    try:
        answer = _ask(question)
    except EvaluationError as refusal:
        record = {
            "kind": type(refusal).__name__,
            "code": refusal.code.value,
            "detail": refusal.detail,
            "numbers": dict(refusal.numbers),
        }
        _store(question, record)
        return json.dumps(record)
    _store(question, asdict(answer))
    return answer


def _error(record: str) -> EvaluationError:
    stored = json.loads(record)
    kind = InfeasibleError if stored["kind"] == InfeasibleError.__name__ else UnsupportedError
    return kind(ReasonCode(stored["code"]), stored["detail"], stored["numbers"])


@lru_cache(maxsize=256)
def _file(identity: str) -> dict[str, Any]:
    """Stored answers by question, read once per process and kept current by `_store`."""
    return _read(identity)


def _read(identity: str) -> dict[str, Any]:
    payload = disk_cache.read("kv-capacity", identity)
    return {} if payload is None else dict(json.loads(payload))


def _store(question: _Question, record: dict[str, Any]) -> None:
    known = _file(question.file_identity)
    known |= _read(question.file_identity) | {question.entry: record}
    disk_cache.write("kv-capacity", question.file_identity, json.dumps(known, sort_keys=True).encode())


def _ask(question: _Question) -> KvCapacity:
    try:
        return _capacity(_estimate(question, None))
    except ValueError as error:
        if "no KV budget" not in str(error):
            raise perf_data.unsupported(error) from error
    except Exception as error:
        raise perf_data.unsupported(error) from error
    # Measured with all of that memory: a tiny fraction of it could be too little again.
    roomy = replace(question, memory_fraction=1.0)
    raise _no_kv_budget(question, _capacity(_estimate(roomy, _MEASURING_CAPACITY_BYTES)))


def _estimate(question: _Question, capacity_override: int | None) -> dict[str, Any]:
    # An unsharded MoE layer is left to the package's default, as the peer leaves it.
    sharded = question.moe_tp * question.moe_ep > 1
    estimate = perf_data.package().load("sdk.memory").estimate_kv_cache(
        question.model,
        question.hardware,
        question.backend,
        question.data_version,
        max_num_tokens=question.max_num_batched_tokens,
        max_batch_size=question.max_num_seqs,
        memory_fraction_kind="of_free" if question.backend == "trtllm" else "of_total",
        memory_fraction_value=question.memory_fraction,
        tp_size=question.tp,
        pp_size=question.pp,
        attention_dp_size=question.attention_dp,
        moe_tp_size=question.moe_tp if sharded else None,
        moe_ep_size=question.moe_ep if sharded else None,
        nextn=question.nextn,
        gpu_memory_capacity_bytes_override=capacity_override,
    )  # fmt: skip
    return dict(estimate)


def _capacity(estimate: dict[str, Any]) -> KvCapacity:
    spent = estimate["memory_breakdown"]
    return KvCapacity(
        tokens_per_rank=int(estimate["total_kv_size_tokens"]),
        kv_bytes_per_token=estimate["kv_size_per_token_bytes"],
        kv_budget_bytes=int(estimate["total_kv_size_bytes"]),
        gpu_bytes=int(estimate["total_gpu_capacity_bytes"]),
        weights_bytes=int(spent["weights_bytes"]),
        activations_bytes=int(spent["activations_bytes"]),
        runtime_bytes=int(spent["runtime_overhead_bytes"]),
        communication_bytes=int(spent["comm_overhead_bytes"]),
    )


def _no_kv_budget(question: _Question, spent: KvCapacity) -> InfeasibleError:
    gpu_bytes = perf_data.gpu_memory_bytes(question.hardware)
    usable_bytes, needed_bytes = _usable_and_needed(question, spent, gpu_bytes)
    numbers: dict[str, float] = {
        "gpu_gib": gpu_bytes / GIB,
        "usable_gib": usable_bytes / GIB,
        "needed_gib": needed_bytes / GIB,
        "weights_gib": spent.weights_bytes / GIB,
        "activations_gib": spent.activations_bytes / GIB,
        "runtime_gib": (spent.runtime_bytes + spent.communication_bytes) / GIB,
        "short_gib": (needed_bytes - usable_bytes) / GIB,
    }
    numbers = {name: round(value, 3) for name, value in numbers.items()}
    gpus = question.tp * question.pp * question.attention_dp
    detail = (
        f"no GPU memory is left for the KV cache of {question.model} on {gpus} x {question.hardware}"
        f" ({question.backend}, tp {question.tp}, attention_dp {question.attention_dp}, moe_tp {question.moe_tp},"
        f" moe_ep {question.moe_ep},"
        f" max_num_batched_tokens {question.max_num_batched_tokens}): per GPU the weights take"
        f" {numbers['weights_gib']:.1f} GiB and all that is not cache {numbers['needed_gib']:.1f} GiB, of"
        f" {numbers['usable_gib']:.1f} GiB usable (memory fraction {question.memory_fraction:g},"
        f" GPU {numbers['gpu_gib']:.1f} GiB)"
    )
    return InfeasibleError(ReasonCode.NO_KV_BUDGET, detail, numbers)


def _usable_and_needed(question: _Question, spent: KvCapacity, gpu_bytes: int) -> tuple[float, float]:
    """Bytes the backend may use and bytes it needs beside the cache, by its own way of counting (spec section 11)."""
    overhead = spent.runtime_bytes + spent.communication_bytes
    if question.backend == "sglang":
        return (gpu_bytes - overhead) * question.memory_fraction, spent.weights_bytes
    needed = spent.weights_bytes + spent.activations_bytes + overhead
    return (gpu_bytes if question.backend == "trtllm" else gpu_bytes * question.memory_fraction), needed
