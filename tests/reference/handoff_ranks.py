"""Ranks of disaggregated roles: a prefill rank keeps finished prompts, a decode rank reserves room for them.

Rules: traffic specification, section 5; replay-engine specification, section 14.
"""

from dataclasses import replace

from tests.reference.acceptance import Acceptance
from tests.reference.block_pool import Block
from tests.reference.sequence import PassLoad, PassResult, Sequence
from tests.reference.sglang import RATIO_FLOOR, SglangRank
from tests.reference.vllm import VllmRank
from workers.replay.fleet import Pool


class VllmPrefillRank(VllmRank):
    """Computes prompts; their blocks stay until the decode side has them."""

    bills_decode = False

    def _leave(self, seq: Sequence) -> None:
        del self.keys[seq]

    def release(self, seq: Sequence) -> None:
        """The decode side runs: the source blocks are free (or cached) now."""
        self.blocks.release(self.held.pop(seq))


class VllmDecodeRank(VllmRank):
    """Generates all tokens of prompts whose KV arrives ready-made; recomputing what it preempted costs no time.

    Arrived sequences queue in the order of their reservations, behind the preempted ones; they pass those while others
    still wait for room here.
    """

    bills_prefill = False

    def __init__(self, pool: Pool, acceptance: Acceptance) -> None:
        super().__init__(pool, acceptance)
        self.landed: list[Sequence] = []
        self.denied: tuple[Sequence, int] | None = None

    def can_never_hold(self, seq: Sequence) -> bool:
        """Over the context limit, or larger than the whole pool."""
        if seq not in self.keys:
            self.accept(seq)
        return self._can_never_run(seq)

    def reserve(self, seq: Sequence) -> int | None:
        """Take the prompt's blocks; returns the tokens cached here already, or None if there is no room now.

        One that was denied is not looked at again before blocks were given back, though it may find more of them cached now.
        """
        hits = self._cached_prompt(seq)
        request = (seq, self.blocks.times_released)
        if request == self.denied or not self._admissible(seq, hits):
            self.denied = request
            return None
        self.held[seq] = self.blocks.take(self._blocks_for(seq.prompt) - len(hits), hits)
        self.reserved.append(seq)
        return len(hits) * self.pool.block_size

    def _cached_prompt(self, seq: Sequence) -> list[Block]:
        """Nothing of the prompt is recomputed, so every cached full block counts; TensorRT-LLM looks for none."""
        if self.is_trt or not self.pool.prefix_caching:
            return []
        return self.blocks.match(self.keys[seq][: seq.prompt // self.pool.block_size])

    def activate(self, seq: Sequence) -> None:
        """The KV has landed: the sequence may run from the next pass on."""
        seq.computed = seq.prompt
        self.landed.append(seq)
        later = set(self.reserved[self.reserved.index(seq) :])
        place = next((i for i, other in enumerate(self.waiting) if other in later), len(self.waiting))
        self.waiting.insert(place, seq)

    def run_pass(self, now: float, group_pass: int, may_prefill: bool = True) -> PassResult:
        """What has landed since the last pass can be found from now on."""
        while self.landed:
            self._publish_full_blocks(self.landed.pop(0), 0)
        return super().run_pass(now, group_pass, may_prefill)

    def _with_queue(self, load: PassLoad) -> PassLoad:
        """Whatever waits here, or is still to come here, waits to decode."""
        waiting = sum(seq.prompt for seq in self.waiting)
        return replace(load, queued_decode_kv_tokens=waiting + self.coming_tokens)

    def _next_waiting(self) -> Sequence | None:
        if self.others_wait:
            return next((seq for seq in self.waiting if seq in self.reserved), None)
        return super()._next_waiting()


class SglangPrefillRank(SglangRank):
    """Computes prompts; the prompt stays locked until the decode side has it."""

    def _leave(self, seq: Sequence) -> None:
        """Nothing is given back yet."""

    def release(self, seq: Sequence) -> None:
        """The decode side runs: what the tree holds stays there, used just now and unlocked."""
        self._publish(seq, seq.computed)
        self._let_go(seq)


class SglangDecodeRank(SglangRank):
    """Generates all tokens of prompts whose KV arrives ready-made; an arrived one needs a slot to run.

    Recomputing what it retracted costs no time.
    """

    bills_prefill = False

    def __init__(self, pool: Pool, acceptance: Acceptance) -> None:
        super().__init__(pool, acceptance)
        self.arrived: list[Sequence] = []

    @property
    def has_work(self) -> bool:
        """True while any sequence waits, has arrived or runs here."""
        return bool(self.arrived) or super().has_work

    def can_never_hold(self, seq: Sequence) -> bool:
        """Over the context limit, to which the output is clamped, or larger than the whole pool."""
        limit = self.pool.context_length
        if limit is not None:
            seq.max_output = min(seq.max_output, max(0, limit - seq.prompt))
        too_long = limit is not None and seq.prompt >= limit
        return too_long or self._pages(seq.prompt) > self.pool.num_blocks * self.page

    def reserve(self, seq: Sequence) -> int | None:
        """Take the prompt's room; returns the cached tokens, None if it must wait. Outputs are not budgeted for."""
        start = self.tree.peek(seq.tokens[: seq.prompt]) if self.pool.prefix_caching else 0
        if not self._hold(seq, start, self._pages(seq.prompt - start)):
            return None
        return start

    def activate(self, seq: Sequence) -> None:
        """The KV has landed: the sequence may run from the next pass on."""
        seq.computed = seq.prompt
        self.arrived.append(seq)

    def run_pass(self, now: float, group_pass: int, may_prefill: bool = True) -> PassResult:
        """Arrived sequences take free slots first, in the order of their arrival; only now their prompts enter the tree.

        Without output they ask no more. While others wait for room here, nothing retracted is computed again; with nothing
        to decode either, the ratio falls to its floor.
        """
        while self.arrived and len(self.running) < self.pool.max_num_seqs:
            seq = self.arrived.pop(0)
            self._publish(seq, seq.prompt)
            seq.admissions.append((now, 0))
            self.running.append(seq)
        silent = [seq for seq in self.running if seq.max_output == 0]
        self.running = [seq for seq in self.running if seq.max_output > 0]
        if self.others_wait and not self.running:
            self.ratio = RATIO_FLOOR * self.start_ratio
        result = super().run_pass(now, group_pass, may_prefill and not self.others_wait)
        for seq in silent:
            self._finish(seq, result)
        result.effect |= bool(silent)
        return result

    def _with_queue(self, load: PassLoad) -> PassLoad:
        """Whatever waits here, or is still to come here, waits to decode."""
        waiting = sum(seq.length for seq in self.waiting + self.arrived)
        return replace(load, queued_decode_kv_tokens=waiting + self.coming_tokens)
