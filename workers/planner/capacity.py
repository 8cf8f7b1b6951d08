"""Requests per second that one engine can serve within the latency bounds, by role.

A batch size that keeps the bounds beats every one that does not; among equals the larger rate wins.
Source: search spec, section 5.6.
"""

import math
from collections.abc import Iterable

from workers.planner.demand import Forecast
from workers.planner.latency import AggLatency, DecodeLatency, PrefillLatency, computed_share
from workers.planner.observation import EngineFacts
from workers.planner.settings import PlannerSettings

MOST_BATCHES = 128
_MS_PER_S = 1000.0


def batches(most: int) -> list[int]:
    """Batch sizes from 1 to `most`: all of them, or as many spread evenly."""
    if most <= MOST_BATCHES:
        return list(range(1, most + 1))
    return sorted({1 + round(at * (most - 1) / (MOST_BATCHES - 1)) for at in range(MOST_BATCHES)})


def prefill_rps(model: PrefillLatency, settings: PlannerSettings, facts: EngineFacts, ahead: Forecast) -> float | None:
    """Of a prefill engine; None where the model or the forecast says nothing."""
    isl = _computed(ahead)
    if not model.times.is_ready or isl < 1:
        return None
    most = min(facts.max_num_seqs, facts.max_num_batched_tokens // isl) or 1
    tried = [(batch, model.drain_ms(batch * isl)) for batch in batches(most)]
    return _best((ms <= settings.ttft_ms, batch * _MS_PER_S / ms) for batch, ms in tried) * facts.attention_dp


def decode_rps(model: DecodeLatency, settings: PlannerSettings, facts: EngineFacts, ahead: Forecast) -> float | None:
    """Of a decode engine; None where the model or the forecast says nothing."""
    osl, context = round(ahead.osl), _context(ahead)
    if not model.times.is_ready or osl < 1:
        return None
    tried = [(batch, model.batch_ms(batch, batch * context)) for batch in batches(_fitting(facts, context))]
    return _best((ms <= settings.itl_ms, batch * _MS_PER_S / (osl * ms)) for batch, ms in tried) * facts.attention_dp


def agg_rps(model: AggLatency, settings: PlannerSettings, facts: EngineFacts, ahead: Forecast) -> float | None:
    """Of an aggregated engine whose passes compute as many prompt tokens as its batch completes requests for."""
    isl, osl, context = _computed(ahead), round(ahead.osl), _context(ahead)
    if not model.times.is_ready or isl < 1 or osl < 1:
        return None
    tried = []
    for batch in batches(_fitting(facts, context)):
        prompt_tokens, kv_tokens = math.ceil(batch * isl / osl), batch * context
        if prompt_tokens > facts.max_num_batched_tokens - batch:
            continue
        itl_ms = model.batch_ms(prompt_tokens, kv_tokens)
        ttft_ms = model.drain_ms(prompt_tokens + isl, kv_tokens)
        keeps = itl_ms <= settings.itl_ms and ttft_ms <= settings.ttft_ms
        tried.append((keeps, batch * _MS_PER_S / (osl * itl_ms)))
    return _best(tried) * facts.attention_dp if tried else None


def _best(rates: Iterable[tuple[bool, float]]) -> float:
    return max(rates)[1]


def _computed(ahead: Forecast) -> int:
    """Prompt tokens of a request that no cache holds."""
    return math.ceil(ahead.isl * computed_share(ahead.hit_rate))


def _context(ahead: Forecast) -> int:
    """Tokens a decoding request holds on average."""
    return max(1, math.ceil(ahead.isl) + round(ahead.osl) // 2)


def _fitting(facts: EngineFacts, context: int) -> int:
    """Requests that one rank can decode at once; at least 1."""
    return max(1, min(facts.max_num_seqs, facts.max_kv_tokens // facts.attention_dp // context))
