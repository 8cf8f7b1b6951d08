"""One rank of a vLLM or TensorRT-LLM engine, pass by pass (replay-engine specification, sections 3 to 6 and 8).

All decisions and state changes of a pass are taken at its start; tokens carry the time of its end.
"""

from dataclasses import dataclass, field, replace
from math import ceil

from app.schemas.status import ReasonCode
from tests.reference.acceptance import Acceptance
from tests.reference.block_pool import Block, BlockPool, chain_hashes
from tests.reference.sequence import PassLoad, PassResult, Sequence
from workers.errors import StuckError
from workers.replay.fleet import Pool


@dataclass
class PassWork:
    """The pass being formed: budget left, and per scheduled sequence the tokens computed before and now."""

    budget: int
    before: dict[Sequence, int] = field(default_factory=dict)
    scheduled: dict[Sequence, int] = field(default_factory=dict)
    charged: dict[Sequence, int] = field(default_factory=dict)
    admitted: set[Sequence] = field(default_factory=set)
    preempted: bool = False
    lost_running: bool = False


class VllmRank:
    """Queues, block pool and scheduler of one rank."""

    bills_prefill = True
    bills_decode = True

    def __init__(self, pool: Pool, acceptance: Acceptance) -> None:
        self.pool = pool
        self.is_trt = pool.backend == "trtllm"
        self.acceptance = acceptance
        self.blocks = BlockPool(pool.num_blocks, retain=pool.prefix_caching)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.reserved: list[Sequence] = []
        self.held: dict[Sequence, list[Block]] = {}
        self.keys: dict[Sequence, list[int]] = {}
        self.may_prefill = False
        self.others_wait = False
        self.coming_tokens = 0

    @property
    def has_work(self) -> bool:
        """True while any sequence waits or runs here."""
        return bool(self.waiting or self.running)

    def cached_keys(self) -> set[int]:
        """Chain hashes of the blocks that can be found now."""
        return set(self.blocks.copies)

    def submit(self, seq: Sequence) -> None:
        """A request arrives and queues."""
        self.accept(seq)
        self.waiting.append(seq)

    def accept(self, seq: Sequence) -> None:
        """TensorRT-LLM clamps the output to what the pool and the context can hold."""
        if self.is_trt:
            capacity = self.pool.num_blocks * self.pool.block_size
            if seq.prompt < capacity:
                seq.max_output = min(seq.max_output, capacity - seq.prompt)
            if self.pool.context_length is not None:
                seq.max_output = min(seq.max_output, max(0, self.pool.context_length - seq.prompt))
        self.keys[seq] = chain_hashes(seq.tokens, self.pool.block_size)

    def run_pass(self, now: float, group_pass: int, may_prefill: bool = True) -> PassResult:
        """Form one pass at `now`, advance every sequence in it and say how long it takes."""
        work = PassWork(budget=self.pool.max_num_batched_tokens)
        result = PassResult()
        defer = self._defers_prefill(group_pass)
        self._serve_running(work, defer)
        if not work.preempted:
            self._admit(now, work, result, defer)
        ready = [s for s in self.running if s.computed == s.length and s.remaining_output > 0]
        self._bill_prefill(work, result)
        load = self._scheduled_load(work)
        bursts = self._make_room_for_bursts(work, ready)
        ready = [s for s in ready if s in self.held]
        if not defer and not work.preempted:
            self.may_prefill = bool(self.waiting)
        self._bill_decode(work, ready, result)
        result.load = self._with_queue(load)
        self._emit(ready, bursts, result)
        result.effect = bool(work.scheduled or work.lost_running or result.rejected or ready or result.finished)
        return result

    # ---- phase A and B

    def _serve_running(self, work: PassWork, defer: bool) -> None:
        """Phase A: every running sequence computes what it misses, in admission order, while budget lasts."""
        for seq in list(self.running):
            if work.budget <= 0:
                break
            if seq not in self.held:
                continue  # preempted by an earlier one in this pass
            missing = seq.length - seq.computed
            if defer and not self._is_decoding(seq):
                continue
            if missing > work.budget and not self.pool.chunked_prefill:
                break
            tokens = min(missing, work.budget)
            if tokens and self._grow_or_preempt(seq, seq.computed + tokens, work):
                drafts = self._drafts if self._is_decoding(seq) and not self.is_trt else 0
                if self.pool.context_length is not None:
                    drafts = max(0, min(drafts, self.pool.context_length - seq.length - 1))
                self._schedule(seq, seq.computed, tokens, min(tokens + drafts, work.budget), work)

    def _admit(self, now: float, work: PassWork, result: PassResult, defer: bool) -> None:
        """Phase B: strictly first come first served; the first head that does not fit ends the phase.

        So does one that needs nothing when the budget is used up.
        """
        while len(self.running) < self.pool.max_num_seqs:
            seq = self._next_waiting()
            if seq is None:
                return
            if seq in self.reserved:  # its KV arrived ready-made: a slot is all it needs
                self.reserved.remove(seq)
                self._run(seq, now, 0)
                work.admitted.add(seq)
                if work.budget <= 0:
                    return
                continue
            if self._can_never_run(seq):
                self.waiting.remove(seq)
                self.keys.pop(seq)
                result.rejected.append(seq)
                continue
            hits = self._cached_prefix(seq)
            hit_tokens = len(hits) * self.pool.block_size
            missing = seq.length - hit_tokens
            if not self._admissible(seq, hits) or (defer and missing > 1):
                return
            if missing > work.budget and not self.pool.chunked_prefill:
                return
            tokens = min(missing, work.budget)
            if missing and not tokens:
                return
            fresh = self._blocks_for(hit_tokens + tokens) - len(hits)
            self.held[seq] = self.blocks.take(fresh, hits)
            self._run(seq, now, hit_tokens)
            work.admitted.add(seq)
            self._schedule(seq, hit_tokens, tokens, tokens, work)
            if not tokens and work.budget <= 0:
                return

    def _next_waiting(self) -> Sequence | None:
        return self.waiting[0] if self.waiting else None

    def _run(self, seq: Sequence, now: float, hit_tokens: int) -> None:
        self.waiting.remove(seq)
        self.running.append(seq)
        seq.admissions.append((now, hit_tokens))

    def _schedule(self, seq: Sequence, before: int, tokens: int, charge: int, work: PassWork) -> None:
        """The sequence computes `tokens` more; blocks it fills can be found at once, within the same pass."""
        work.before[seq], work.scheduled[seq], work.charged[seq] = before, tokens, charge
        work.budget -= charge
        seq.computed = before + tokens
        self._publish_full_blocks(seq, before)

    def _publish_full_blocks(self, seq: Sequence, before: int) -> None:
        size = self.pool.block_size
        for i in range(before // size, seq.computed // size):
            if self.held[seq][i].key is None:
                self.blocks.fill(self.held[seq][i], self.keys[seq][i])

    def _is_decoding(self, seq: Sequence) -> bool:
        return seq.computed >= seq.prompt and seq.length - seq.computed == 1

    def _defers_prefill(self, group_pass: int) -> bool:
        """Attention DP: prefill only on every m-th group pass while something decodes here (R-PSI)."""
        interval = self.pool.prefill_schedule_interval
        if interval <= 1 or self.pool.attention_dp <= 1 or group_pass % interval == 0:
            return False
        return not self.may_prefill and any(s.computed >= s.prompt for s in self.running)

    # ---- room

    def _blocks_for(self, tokens: int) -> int:
        return ceil(tokens / self.pool.block_size)

    def _cached_prefix(self, seq: Sequence) -> list[Block]:
        """Cached leading blocks. vLLM recomputes the last token before an output; drafting costs it one more block."""
        if not self.pool.prefix_caching:
            return []
        computes_last = not self.is_trt and seq.max_output > 0
        hits = self.blocks.match(self.keys[seq][: (seq.length - computes_last) // self.pool.block_size])
        if self.pool.acceptance and computes_last:
            return hits[:-1]
        return hits

    def _can_never_run(self, seq: Sequence) -> bool:
        """Context limit, or a fresh request that exceeds the whole pool."""
        limit = self.pool.context_length
        if limit is not None and seq.prompt >= limit:
            return True
        if self.is_trt:
            capacity = self.pool.num_blocks * self.pool.block_size
            return seq.prompt >= capacity or self._full_need(seq) > self.pool.num_blocks
        return seq.generated == 0 and self._blocks_for(seq.prompt) > self.pool.num_blocks

    def _admissible(self, seq: Sequence, hits: list[Block]) -> bool:
        """vLLM: the known sequence fits now. TensorRT-LLM: it and all running ones fit until their last token."""
        shared = sum(not self.blocks.is_inactive(block) for block in hits)
        available = self.pool.num_blocks - self.blocks.active
        if not self.is_trt:
            return self._blocks_for(seq.length) - shared <= available
        promised = sum(self._full_need(s) - len(self.held[s]) for s in self.running + self.reserved)
        return self._full_need(seq) - shared <= available - promised

    def _full_need(self, seq: Sequence) -> int:
        return self._blocks_for(seq.prompt + seq.max_output)

    def _grow(self, seq: Sequence, tokens: int) -> bool:
        fresh = max(0, self._blocks_for(tokens) - len(self.held[seq]))
        if not self.blocks.can_take(fresh, []):
            return False
        self.held[seq] += self.blocks.take(fresh, [])
        return True

    def _grow_or_preempt(self, seq: Sequence, tokens: int, work: PassWork) -> bool:
        """Room for `tokens`, at the cost of the most recently admitted ones; False if that is the sequence itself."""
        while not self._grow(seq, tokens):
            if self.blocks.active == len(self.held[seq]):
                raise StuckError(ReasonCode.REPLAY_STUCK, f"request {seq.index} outgrew the KV pool it has alone")
            victim = self.running[-1]
            self._preempt(victim, work)
            if victim is seq:
                return False
        return True

    def _preempt(self, victim: Sequence, work: PassWork) -> None:
        """Recompute later: drop its KV, keep its tokens, put it first in the queue, undo its work of this pass."""
        self.running.remove(victim)
        self.blocks.release(self.held.pop(victim))
        victim.computed = 0
        self.waiting.insert(0, victim)
        work.budget += work.charged.pop(victim, 0)
        work.before.pop(victim, None)
        work.scheduled.pop(victim, None)
        work.preempted = True
        work.lost_running |= victim not in work.admitted

    # ---- speculation

    @property
    def _drafts(self) -> int:
        return len(self.pool.acceptance)

    def _make_room_for_bursts(self, work: PassWork, ready: list[Sequence]) -> dict[Sequence, int]:
        """Tokens each ready sequence may emit at most; with speculation their room is taken before timing."""
        bursts: dict[Sequence, int] = {}
        self.drafts: dict[Sequence, int] = {}
        for seq in ready:
            if seq not in self.held:
                continue
            fresh = self._is_fresh(seq, work) and not self.is_trt
            drafts = 0 if fresh else self._drafts_that_fit(seq, work)
            bursts[seq] = min(1 + drafts, seq.remaining_output)
            self.drafts[seq] = drafts
            if self.pool.acceptance:
                self._grow_or_preempt(seq, seq.length + bursts[seq], work)
        return bursts

    def _drafts_that_fit(self, seq: Sequence, work: PassWork) -> int:
        """Drafts verified beside the one certain token: what the budget left of them (vLLM), all (TensorRT-LLM)."""
        if self.is_trt:
            return self._drafts
        return work.charged.get(seq, 0) - work.scheduled.get(seq, 0)

    def _is_fresh(self, seq: Sequence, work: PassWork) -> bool:
        """Computed its last prompt token in this pass and has no token yet."""
        before = work.before.get(seq, seq.computed)
        return seq.generated == 0 and before < min(before + work.scheduled.get(seq, 0), seq.prompt)

    # ---- what a planner sees

    def _scheduled_load(self, work: PassWork) -> PassLoad:
        """Prompts with tokens to compute count as prefill, all others that go on count as decode."""
        members = {seq: 0 for seq in self.running if seq in work.admitted} | work.scheduled
        prefills = [tokens for seq, tokens in members.items() if tokens and work.before[seq] < seq.prompt]
        decodes = [
            seq.length
            for seq, tokens in members.items()
            if not (tokens and work.before[seq] < seq.prompt) and not self._is_complete(seq)
        ]
        return PassLoad(len(prefills), sum(prefills), len(decodes), sum(decodes))

    def _is_complete(self, seq: Sequence) -> bool:
        limit = self.pool.context_length
        return seq.remaining_output <= 0 or (limit is not None and seq.length >= limit)

    def _with_queue(self, load: PassLoad) -> PassLoad:
        """Prompts wait for prefill until they are first admitted, preempted ones for decode."""
        fresh = sum(seq.prompt for seq in self.waiting if not seq.admissions)
        again = sum(seq.length for seq in self.waiting if seq.admissions)
        return replace(load, queued_prefill_tokens=fresh, queued_decode_kv_tokens=again)

    # ---- timing and output

    def _bill_prefill(self, work: PassWork, result: PassResult) -> None:
        """The prompt tokens computed now, also those of a sequence that loses its room before it emits."""
        starts, ends = [], []
        for seq, tokens in work.scheduled.items():
            before = work.before[seq]
            start, end = min(before, seq.prompt), min(before + tokens, seq.prompt)
            if end > start:
                result.computed_prefill += tokens
                starts.append(start)
                ends.append(end)
        result.did_prefill = bool(ends)
        count = len(ends)
        if self.bills_prefill and count and sum(ends) // count > sum(starts) // count:
            result.duration_ms += self.pool.step_times.prefill_ms(count, sum(ends) // count, sum(starts) // count)

    def _bill_decode(self, work: PassWork, ready: list[Sequence], result: PassResult) -> None:
        """One decode step of all ready sequences that are not fresh."""
        burst_on_first = self.is_trt and bool(self.pool.acceptance)
        decoding = [s for s in ready if burst_on_first or not self._is_fresh(s, work)]
        if decoding and self.bills_decode:
            total = sum(s.length for s in decoding)
            result.duration_ms += self.pool.step_times.decode_ms(len(decoding), total, total // len(decoding))

    def _emit(self, ready: list[Sequence], bursts: dict[Sequence, int], result: PassResult) -> None:
        """Every ready sequence gets its token or burst; finished ones leave and release their blocks."""
        for seq in ready:
            tokens = min(1 + self.acceptance.accepted(self.drafts.get(seq, 0)), bursts[seq])
            if self.pool.context_length is not None:
                tokens = min(tokens, self.pool.context_length - seq.length)
            before = seq.computed
            seq.generated += tokens
            seq.computed = seq.length - 1
            if tokens > 1:
                self._publish_full_blocks(seq, before)
            if self.pool.acceptance:
                self._give_back_drafts(seq)
            result.emitted.append((seq, tokens))
        for seq in list(self.running):
            at_limit = self.pool.context_length is not None and seq.length >= self.pool.context_length
            done = seq.remaining_output <= 0 and seq.computed >= seq.length - (seq.generated > 0)
            if done or (at_limit and seq.generated > 0):
                self.running.remove(seq)
                self._leave(seq)
                result.finished.append(seq)

    def _give_back_drafts(self, seq: Sequence) -> None:
        """Room taken for drafts that were not accepted."""
        kept = self._blocks_for(seq.length)
        self.blocks.release(self.held[seq][kept:])
        del self.held[seq][kept:]

    def _leave(self, seq: Sequence) -> None:
        """A sequence is done here and gives its blocks back."""
        self.blocks.release(self.held.pop(seq))
        del self.keys[seq]
