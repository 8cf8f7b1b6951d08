"""One rank of an SGLang engine, pass by pass (replay-engine specification, section 7).

Room is counted in tokens: free ones, the tree's (shared, evictable when unlocked) and each sequence's own.
"""

from dataclasses import dataclass, replace

from tests.reference.acceptance import Acceptance
from tests.reference.block_pool import chain_hashes
from tests.reference.radix_tree import Node, RadixTree
from tests.reference.sequence import PassLoad, PassResult, Sequence
from workers.replay.fleet import Pool

CHUNK_BUDGET_TOKENS = 8192
RESERVED_OUTPUT_LIMIT = 4096
START_RATIO, START_RATIO_DP = 0.7, 0.21
RATIO_FLOOR, RATIO_FALL, RATIO_FALL_PASSES = 0.14, 0.86, 600
RETRACT_STEPS = 20


@dataclass
class Held:
    """Room of one sequence: `shared` tokens in the tree up to a locked node, and `own` tokens beyond them."""

    node: Node
    shared: int
    own: int = 0


@dataclass
class Member:
    """A sequence in the prefill batch: it computes tokens [start, end)."""

    seq: Sequence
    start: int
    end: int


class SglangRank:
    """Queues, radix tree and scheduler of one rank."""

    bills_prefill = True

    def __init__(self, pool: Pool, acceptance: Acceptance) -> None:
        self.pool = pool
        self.page = pool.block_size
        self.acceptance = acceptance
        self.tree = RadixTree(self.page)
        self.free = pool.num_blocks * pool.block_size
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.held: dict[Sequence, Held] = {}
        self.start_ratio = START_RATIO_DP if pool.attention_dp > 1 else START_RATIO
        self.ratio = self.start_ratio
        self.others_wait = False
        self.coming_tokens = 0

    @property
    def has_work(self) -> bool:
        """True while any sequence waits or runs here."""
        return bool(self.waiting or self.running)

    def cached_keys(self) -> set[int]:
        """Chain hashes of the pages that the tree holds now."""
        return {key for tokens in self.tree.sequences() for key in chain_hashes(tokens, self.page)}

    def submit(self, seq: Sequence) -> None:
        """A request arrives; its output is clamped to the context limit."""
        limit = self.pool.context_length
        if limit is not None:
            seq.max_output = min(seq.max_output, max(0, limit - seq.prompt))
        self.waiting.append(seq)

    def run_pass(self, now: float, group_pass: int, may_prefill: bool = True) -> PassResult:
        """Prefill if a batch can be formed, else decode everything that runs."""
        result = PassResult()
        self._reject_too_long(result)
        batch = self._form_batch(now) if may_prefill else []
        load = self._scheduled_load(batch)
        if batch:
            self._prefill(batch, result)
        elif self.running:
            self._decode(result)
        result.effect = result.effect or bool(batch or result.emitted or result.rejected)
        result.load = self._with_queue(load)
        return result

    def _scheduled_load(self, batch: list[Member]) -> PassLoad:
        """A pass prefills its batch, or decodes everything that runs."""
        prefills = [member.end - member.start for member in batch if member.end > member.start]
        decodes = [] if batch else [seq.length for seq in self.running if seq.remaining_output > 0]
        return PassLoad(len(prefills), sum(prefills), len(decodes), sum(decodes))

    def _with_queue(self, load: PassLoad) -> PassLoad:
        """Prompts without a token wait for prefill, even partly computed ones; retracted ones for decode."""
        fresh = sum(seq.prompt for seq in self.waiting if not seq.generated)
        again = sum(seq.length for seq in self.waiting if seq.generated)
        return replace(load, queued_prefill_tokens=fresh, queued_decode_kv_tokens=again)

    def _reject_too_long(self, result: PassResult) -> None:
        """Prompts at or over the context limit leave wherever they wait, even if no slot is free."""
        limit = self.pool.context_length
        if limit is not None:
            result.rejected = [seq for seq in self.waiting if seq.prompt >= limit]
            self.waiting = [seq for seq in self.waiting if seq.prompt < limit]

    # ---- prefill

    def _form_batch(self, now: float) -> list[Member]:
        """Take heads of the queue while chunk budget, slots and room last; the first that fails blocks the rest."""
        batch: list[Member] = []
        promised = sum(min(s.remaining_output, RESERVED_OUTPUT_LIMIT) for s in self.running)
        available = self.free + self.tree.evictable - self.ratio * promised
        budget = CHUNK_BUDGET_TOKENS // self.pool.attention_dp
        while self.waiting and budget > 0 and len(batch) < self.pool.max_num_seqs - len(self.running):
            seq = self.waiting[0]
            start = self._cached_tokens(seq)
            missing = seq.length - start
            reserve = min(seq.remaining_output, RESERVED_OUTPUT_LIMIT)
            if self._pages(missing) > budget:
                missing, reserve = budget // self.page * self.page, 0
                if missing == 0:
                    break
            room = self._pages(missing)
            if not room + reserve < available or not self._hold(seq, start, room):
                break
            available -= room + reserve
            budget -= room
            self.waiting.pop(0)
            if seq.computed == 0:
                seq.admissions.append((now, start))
            batch.append(Member(seq, start, start + missing))
        return batch

    def _cached_tokens(self, seq: Sequence) -> int:
        """Where the sequence starts: what it has computed, or what the tree holds, but for the last token before an output."""
        if seq in self.held:
            return seq.computed
        if not self.pool.prefix_caching:
            return 0
        return self.tree.peek(seq.tokens[: max(0, seq.length - (seq.max_output > 0))])

    def _hold(self, seq: Sequence, start: int, room: int) -> bool:
        """Lock (and only now refresh) the cached prefix and allocate `room` tokens beyond it; all or nothing."""
        if seq in self.held:
            fits = self._allocate(room)
        else:
            node, _ = self.tree.match(seq.tokens[:start])
            self.tree.lock(node)
            self.held[seq] = Held(node, start)
            fits = self._allocate(room)
        if fits:
            self.held[seq].own += room
        elif seq.computed == 0:
            self.tree.unlock(self.held.pop(seq).node)
        return fits

    def _prefill(self, batch: list[Member], result: PassResult) -> None:
        """Bill the batch; complete members emit a token and run, cut ones go back to the front of the queue."""
        count = len(batch)
        ends, starts = sum(m.end for m in batch) // count, sum(m.start for m in batch) // count
        if ends > starts and self.bills_prefill:
            result.duration_ms = self.pool.step_times.prefill_ms(count, ends, starts)
        result.computed_prefill = sum(m.end - m.start for m in batch)
        result.did_prefill = result.computed_prefill > 0
        for member in batch:
            member.seq.computed = member.end
            self._publish(member.seq, member.end)
        cut = [m.seq for m in batch if m.end < m.seq.length]
        self.waiting[:0] = cut
        self._first_tokens([m.seq for m in batch if m.seq not in cut], result)

    def _first_tokens(self, complete: list[Sequence], result: PassResult) -> None:
        """One token each. Those that end here need no slot; if the others' slots do not all fit, their tokens wait."""
        last = [seq for seq in complete if seq.remaining_output <= 1]
        others = [seq for seq in complete if seq not in last]
        need = sum(self._pages(seq.length + 1) - self._pages(seq.length) for seq in others)
        fits = need <= self.free + self.tree.evictable
        self.free += self.tree.evict(need - self.free)
        for seq in complete:
            if seq.remaining_output > 0 and (fits or seq in last):
                if seq in others:
                    assert self._grow(seq, seq.length + 1), "room was checked"
                seq.generated += 1
                result.emitted.append((seq, 1))
        self.running += others
        for seq in last:
            self._finish(seq, result)

    # ---- decode

    def _decode(self, result: PassResult) -> None:
        """Every running sequence gets a slot and a token (or a burst), after retracting what the room cannot hold."""
        retracted = self._retract_until_it_fits()
        result.effect = retracted
        if self._need() > self.free + self.tree.evictable:
            return
        total = sum(s.length for s in self.running)
        count = len(self.running)
        result.duration_ms = self.pool.step_times.decode_ms(count, total, total // count)
        if not retracted:
            fall = RATIO_FALL * self.start_ratio / RATIO_FALL_PASSES
            self.ratio = max(RATIO_FLOOR * self.start_ratio, self.ratio - fall)
        self.free += self.tree.evict(self._need() - self.free)
        for seq in self.running:
            tokens = min(1 + self.acceptance.accepted(len(self.pool.acceptance)), self._burst(seq))
            assert self._grow(seq, seq.length + tokens), "room for the burst was checked"
            seq.generated += tokens
            result.emitted.append((seq, tokens))
        for seq in list(self.running):
            if seq.remaining_output <= 0:
                self.running.remove(seq)
                seq.computed = seq.length
                self._finish(seq, result)

    def _burst(self, seq: Sequence) -> int:
        """Most tokens one decode step can give this sequence."""
        return min(1 + len(self.pool.acceptance), seq.remaining_output)

    def _need(self) -> int:
        """Tokens of new pages for the longest bursts the next decode pass can bring."""
        return sum(self._pages(s.length + self._burst(s)) - self._pages(s.length) for s in self.running)

    def _retract_until_it_fits(self) -> bool:
        """Send sequences back to the queue until the others fit, and lower the trust in early finishes."""
        retracted = False
        while self._need() > self.free + self.tree.evictable and len(self.running) > 1:
            self._retract(min(reversed(self.running), key=lambda s: (s.generated, -s.prompt)))
            retracted = True
        if retracted:
            generated, outputs = sum(s.generated for s in self.running), sum(s.max_output for s in self.running)
            self.ratio = min(1.0, (generated + RETRACT_STEPS * len(self.running)) / (outputs + 1))
        return retracted

    def _retract(self, victim: Sequence) -> None:
        """Its own room is freed, its cached prefix unlocked; it queues again, last, as a prompt of all its tokens."""
        self.running.remove(victim)
        self._let_go(victim)
        self.free += self.tree.evict(RETRACT_STEPS * len(self.running) - self.free)
        victim.computed = 0
        self.waiting.append(victim)

    # ---- room

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self.page) * self.page

    def _allocate(self, tokens: int) -> bool:
        if tokens > self.free + self.tree.evictable:
            return False
        self.free += self.tree.evict(tokens - self.free)
        self.free -= tokens
        return True

    def _grow(self, seq: Sequence, tokens: int) -> bool:
        """Own room up to `tokens` of the sequence."""
        held = self.held[seq]
        missing = max(0, self._pages(tokens) - held.shared - held.own)
        if not self._allocate(missing):
            return False
        held.own += missing
        return True

    def _publish(self, seq: Sequence, tokens: int) -> None:
        """The first `tokens` enter the tree as whole pages; pages that were there already are freed."""
        if not self.pool.prefix_caching:
            return
        held = self.held[seq]
        whole = tokens // self.page * self.page
        node, present = self.tree.insert(seq.tokens[:whole], held.node)
        self.tree.lock(node)
        self.tree.unlock(held.node)
        self.free += max(0, present - held.shared)
        held.own -= whole - held.shared
        held.node, held.shared = node, whole

    def _finish(self, seq: Sequence, result: PassResult) -> None:
        self._leave(seq)
        result.finished.append(seq)

    def _leave(self, seq: Sequence) -> None:
        """All computed tokens stay in the tree, unlocked; the rest is freed. The last token of a prefill has no slot."""
        self._publish(seq, seq.computed)
        self._let_go(seq)

    def _let_go(self, seq: Sequence) -> None:
        """Free what the sequence owns and unlock what it shares."""
        held = self.held.pop(seq)
        self.tree.unlock(held.node)
        self.free += held.own
