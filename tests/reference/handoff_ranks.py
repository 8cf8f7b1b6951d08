"""Ranks of disaggregated roles: a prefill rank keeps finished prompts, a decode rank reserves room for them.

Rules: traffic specification, section 5; replay-engine specification, section 14.
"""

from tests.reference.sequence import Sequence
from tests.reference.sglang import RESERVED_OUTPUT_LIMIT, SglangRank
from tests.reference.vllm import VllmRank


class VllmPrefillRank(VllmRank):
    """Computes prompts; their blocks stay until the decode side has them. TensorRT-LLM keeps room for a token more."""

    def _leave(self, seq: Sequence) -> None:
        del self.keys[seq]
        if self.is_trt:
            self._grow(seq, seq.prompt + 1)

    def release(self, seq: Sequence) -> None:
        """The decode side runs: the source blocks are free (or cached) now."""
        self.blocks.release(self.held.pop(seq))


class VllmDecodeRank(VllmRank):
    """Generates all tokens of prompts whose KV arrives ready-made; recomputing what it preempted costs no time.

    An arrived sequence queues behind the preempted ones, but passes them while others still wait for room here.
    """

    bills_prefill = False

    def reserve(self, seq: Sequence) -> int | None:
        """Take the prompt's blocks; returns the tokens cached here already, or None if there is no room now."""
        if seq not in self.keys:
            self.accept(seq)
        hits = self._cached_prefix(seq)
        if not self._admissible(seq, hits):
            return None
        self.held[seq] = self.blocks.take(self._blocks_for(seq.prompt) - len(hits), hits)
        self.reserved.append(seq)
        return len(hits) * self.pool.block_size

    def activate(self, seq: Sequence, now: float) -> None:  # noqa: ARG002
        """The KV has landed: the sequence may run from the next pass on."""
        seq.computed = seq.prompt
        self._publish_full_blocks(seq, 0)
        self.waiting.append(seq)

    def _next_waiting(self) -> Sequence | None:
        if self.others_wait:
            return next((seq for seq in self.waiting if seq in self.reserved), None)
        return super()._next_waiting()


class SglangPrefillRank(SglangRank):
    """Computes prompts; the prompt stays locked, with a slot for one token, until the decode side has it."""

    def _leave(self, seq: Sequence) -> None:
        self._grow(seq, seq.prompt + 1)

    def release(self, seq: Sequence) -> None:
        """The decode side runs: what the tree holds stays there unlocked."""
        self._let_go(seq)


class SglangDecodeRank(SglangRank):
    """Generates all tokens of prompts whose KV arrives ready-made."""

    def reserve(self, seq: Sequence) -> int | None:
        """Take the prompt's room under the usual admission budget; returns the cached tokens, None if it must wait."""
        promised = sum(min(s.remaining_output, RESERVED_OUTPUT_LIMIT) for s in self.running)
        available = self.free + self.tree.evictable - self.ratio * promised
        start = self._cached_tokens(seq)
        room = self._pages(seq.prompt - start)
        if not room + min(seq.max_output, RESERVED_OUTPUT_LIMIT) < available or not self._hold(seq, start, room):
            return None
        return start

    def activate(self, seq: Sequence, now: float) -> None:
        """The KV has landed: the prompt enters the tree and the sequence runs from the next pass on."""
        seq.computed = seq.prompt
        seq.admissions.append((now, 0))
        self._publish(seq, seq.prompt)
        self.running.append(seq)
