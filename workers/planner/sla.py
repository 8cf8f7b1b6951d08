"""Load scaling towards latency bounds: what each rank is expected to take now, and with one engine fewer.

An engine is added when every rank is expected to miss the bound. One is removed when every rank, with its load grown
to n/(n-1), keeps its bound with the reserve of the sensitivity. Source: search spec, section 5.5.
"""

from collections.abc import Callable, Sequence

from workers.planner.latency import AggLatency, DecodeLatency, PrefillLatency
from workers.planner.observation import EngineFacts, PassRecord
from workers.planner.settings import PlannerSettings

Records = Sequence[PassRecord]


def prefill_step(
    model: PrefillLatency, settings: PlannerSettings, records: Records, ready: int, hit_rate: float
) -> int:
    """+1, 0 or -1 prefill engines."""
    if not model.times.is_ready:
        return 0
    growth, own_ms = _growth(ready), model.ttft_ms(0.0, hit_rate)

    def keeps(record: PassRecord) -> bool:
        grown_ms = model.ttft_ms(record.queued_prefill_tokens * growth, hit_rate)
        return _queue_fits(settings, own_ms, grown_ms)

    now_ms = [model.ttft_ms(record.queued_prefill_tokens, hit_rate) for record in records]
    return _step(now_ms, settings.ttft_ms, records, ready, keeps)


def decode_step(
    model: DecodeLatency, settings: PlannerSettings, facts: EngineFacts, records: Records, ready: int
) -> int:
    """+1, 0 or -1 decode engines."""
    if not model.times.is_ready:
        return 0
    growth = _growth(ready)

    def keeps(record: PassRecord) -> bool:
        tokens = (record.decode_kv_tokens + record.queued_decode_kv_tokens) * growth
        return _holds(facts, tokens) and model.itl_ms(record, growth) < settings.itl_ms * settings.sensitivity

    return _step([model.itl_ms(record) for record in records], settings.itl_ms, records, ready, keeps)


def agg_step(
    model: AggLatency, settings: PlannerSettings, facts: EngineFacts, records: Records, ready: int, hit_rate: float
) -> int:
    """+1, 0 or -1 aggregated engines: more if prompts or tokens say so, fewer if both do."""
    if not model.times.is_ready:
        return 0
    growth = _growth(ready)

    def prompts_keep(record: PassRecord) -> bool:
        kv_tokens = record.decode_kv_tokens * growth
        own_ms = model.ttft_ms(0.0, hit_rate, kv_tokens)
        return _queue_fits(settings, own_ms, model.ttft_ms(record.queued_prefill_tokens * growth, hit_rate, kv_tokens))

    def tokens_keep(record: PassRecord) -> bool:
        held = record.decode_kv_tokens + record.queued_decode_kv_tokens + record.queued_prefill_tokens
        return _holds(facts, held * growth) and model.itl_ms(held * growth) < settings.itl_ms * settings.sensitivity

    ttft_ms = [model.ttft_ms(each.queued_prefill_tokens, hit_rate, each.decode_kv_tokens) for each in records]
    itl_ms = [model.itl_ms(each.decode_kv_tokens + each.queued_decode_kv_tokens) for each in records]
    by_prompts = _step(ttft_ms, settings.ttft_ms, records, ready, prompts_keep)
    by_tokens = _step(itl_ms, settings.itl_ms, records, ready, tokens_keep)
    if max(by_prompts, by_tokens) > 0:
        return 1
    return max(by_prompts, by_tokens)


def _step(
    now_ms: Sequence[float], bound_ms: float, records: Records, ready: int, keeps: Callable[[PassRecord], bool]
) -> int:
    if all(value > bound_ms for value in now_ms):
        return 1
    return -1 if ready > 1 and all(keeps(record) for record in records) else 0


def _growth(ready: int) -> float:
    """By how much the load of an engine grows when one of `ready` goes."""
    return ready / (ready - 1) if ready > 1 else 1.0


def _queue_fits(settings: PlannerSettings, own_ms: float, grown_ms: float) -> bool:
    """Whether the wait behind others fits what the bound leaves beside a prompt's own time."""
    return grown_ms - own_ms < (settings.ttft_ms - own_ms) * settings.sensitivity


def _holds(facts: EngineFacts, kv_tokens: float) -> bool:
    """Whether one rank's share of the KV cache holds so many tokens."""
    return kv_tokens < facts.max_kv_tokens / facts.attention_dp
