"""The tree of all token sequences of a batch, cut into nodes of whole KV blocks: what requests can share.

A sequence is the prompt's spans followed by the output's span. The tree is built in tokens (a radix tree over spans) and
then rounded to blocks: block b belongs to the node in which it ends. Nodes on the way of one request only are that
request's own and are not listed.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from workers.replay.compiled import entry, inner
from workers.replay.state import NONE
from workers.traffic.requests import RequestBatch


class PrefixTree(NamedTuple):
    """K shared nodes; paths of R requests, root first.

    path_start: int64 [R + 1] into paths. paths: int32 [J, 3], (node, its first block, its blocks). num_nodes: K.
    own_start: int32 [R], first block outside the path. own_blocks: int64 [R], blocks the sequence may fill beyond it.
    may_duplicate: True when a prompt ends on the end of a shared block, so that a second copy of it may come to be.
    """

    path_start: NDArray[np.int64]
    paths: NDArray[np.int32]
    num_nodes: int
    own_start: NDArray[np.int32]
    own_blocks: NDArray[np.int64]
    may_duplicate: bool


def prefix_tree(batch: RequestBatch, block_size: int, by_block: bool = False) -> PrefixTree:
    """The shared nodes of a batch in blocks of `block_size` tokens; single blocks as nodes when `by_block`."""
    num = batch.num_requests
    length = batch.input_tokens + batch.output_tokens
    if batch.span_offset is None or batch.span_id is None or batch.span_tokens is None:
        nothing = np.zeros((0, 3), dtype=np.int32)
        own_start = np.zeros(num, dtype=np.int32)
        return PrefixTree(np.zeros(num + 1, dtype=np.int64), nothing, 0, own_start, length // block_size, False)
    output_span = batch.output_span
    if output_span is None:
        output_span = np.arange(num, dtype=np.int64) + int(batch.span_id.max(initial=0)) + 1
    start, end, parent, leaf = _grow_tree(
        batch.span_offset.astype(np.int64), batch.span_id.astype(np.int64), batch.span_tokens.astype(np.int64),
        output_span.astype(np.int64), batch.input_tokens, batch.output_tokens, block_size,
    )  # fmt: skip
    path_start, paths, num_nodes, own_start = _cut_into_blocks(start, end, parent, leaf, block_size, by_block)
    ends_on_block = (batch.input_tokens > 0) & (batch.input_tokens % block_size == 0)
    may_duplicate = bool((ends_on_block & (batch.input_tokens // block_size <= own_start)).any())
    own_blocks = np.maximum(length // block_size - own_start, 0)
    return PrefixTree(path_start, paths, num_nodes, own_start, own_blocks, may_duplicate)


@inner
def _slot(table, mask, parent, span, offset, first_span, first_offset, node_parent):  # type: ignore[no-untyped-def]
    """Slot of the child of `parent` that begins with token `offset` of `span`, or where it belongs."""
    mixed = np.uint64(parent) * np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(span) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed = (mixed ^ (mixed >> np.uint64(31)) ^ np.uint64(offset)) * np.uint64(0xBF58476D1CE4E5B9)
    slot = np.int64(mixed >> np.uint64(34)) & mask
    while True:
        node = table[slot]
        if node == NONE or (node_parent[node] == parent and first_span[node] == span and first_offset[node] == offset):
            return slot
        slot = (slot + 1) & mask


@entry
def _grow_tree(span_offset, span_id, span_tokens, output_span, prompt, output, block_size):  # type: ignore[no-untyped-def]
    """Radix tree in tokens: (start, end, parent) of every node and the deepest node of every request; node 0 is the root.

    A node's tokens are those of its representative request, from piece `at_piece` and token `at_offset` of it. Every prompt
    that ends on a block boundary gets node boundaries before and after its last block.
    """
    num = prompt.size
    most = 6 * num + 8
    start = np.zeros(most, dtype=np.int64)
    end = np.zeros(most, dtype=np.int64)
    parent = np.full(most, -1, dtype=np.int64)
    rep = np.zeros(most, dtype=np.int64)
    at_piece = np.zeros(most, dtype=np.int64)
    first_span = np.zeros(most, dtype=np.int64)
    at_offset = np.zeros(most, dtype=np.int64)
    leaf = np.zeros(num, dtype=np.int64)
    size = 1024
    while size < 2 * most:
        size *= 2
    mask = size - 1
    table = np.full(size, -1, dtype=np.int64)
    used = 1

    for r in range(num):
        pieces = span_offset[r + 1] - span_offset[r]
        total = prompt[r] + output[r]
        node, position, piece, offset = 0, 0, 0, 0
        while position < total:
            while True:
                if piece < pieces:
                    span, here = span_id[span_offset[r] + piece], span_tokens[span_offset[r] + piece]
                else:
                    span, here = output_span[r], output[r]
                if offset < here:
                    break
                piece, offset = piece + 1, 0
            slot = _slot(table, mask, node, span, offset, first_span, at_offset, parent)
            child = table[slot]
            if child == -1:
                child = used
                used += 1
                table[slot] = child
                start[child], end[child], parent[child], rep[child] = position, total, node, r
                at_piece[child], first_span[child], at_offset[child] = piece, span, offset
                node, position = child, total
                break
            # Follow the child as far as both agree.
            other, other_piece, other_offset = rep[child], at_piece[child], at_offset[child]
            other_pieces = span_offset[other + 1] - span_offset[other]
            agreed = position
            while agreed < end[child] and agreed < total:
                if piece < pieces:
                    span, here = span_id[span_offset[r] + piece], span_tokens[span_offset[r] + piece]
                else:
                    span, here = output_span[r], output[r]
                if other_piece < other_pieces:
                    j = span_offset[other] + other_piece
                    other_span, other_here = span_id[j], span_tokens[j]
                else:
                    other_span, other_here = output_span[other], output[other]
                if offset >= here:
                    piece, offset = piece + 1, 0
                    continue
                if other_offset >= other_here:
                    other_piece, other_offset = other_piece + 1, 0
                    continue
                if span != other_span or offset != other_offset:
                    break
                step = min(min(here - offset, other_here - other_offset), end[child] - agreed)
                agreed += step
                offset += step
                other_offset += step
            position = agreed
            if agreed < end[child]:
                node = used
                used += 1
                _split(node, child, agreed, start, end, parent, rep, at_piece, first_span, at_offset, table, mask,
                       span_offset, span_id, span_tokens, output_span, output)  # fmt: skip
            else:
                node = child
        leaf[r] = node
        if prompt[r] > 0 and prompt[r] % block_size == 0:
            for depth in (prompt[r], prompt[r] - block_size):
                node = leaf[r]
                while node > 0 and start[node] >= depth:
                    node = parent[node]
                if node > 0 and depth < end[node]:
                    _split(used, node, depth, start, end, parent, rep, at_piece, first_span, at_offset, table, mask,
                           span_offset, span_id, span_tokens, output_span, output)  # fmt: skip
                    used += 1
    return start[:used], end[:used], parent[:used], leaf


@inner
def _split(upper, node, depth, start, end, parent, rep, at_piece, first_span, at_offset, table, mask,  # type: ignore[no-untyped-def]
           span_offset, span_id, span_tokens, output_span, output):  # fmt: skip
    """Cut `node` at token `depth`: the new node `upper` takes its head, `node` keeps its tail."""
    slot = _slot(table, mask, parent[node], first_span[node], at_offset[node], first_span, at_offset, parent)
    r, piece, offset = rep[node], at_piece[node], at_offset[node]
    start[upper], end[upper], parent[upper], rep[upper] = start[node], depth, parent[node], r
    at_piece[upper], first_span[upper], at_offset[upper] = piece, first_span[node], offset
    table[slot] = upper
    left = depth - start[node]
    pieces = span_offset[r + 1] - span_offset[r]
    while True:
        if piece < pieces:
            span, here = span_id[span_offset[r] + piece], span_tokens[span_offset[r] + piece]
        else:
            span, here = output_span[r], output[r]
        if left < here - offset:
            offset += left
            break
        left -= here - offset
        piece, offset = piece + 1, 0
    start[node], parent[node] = depth, upper
    at_piece[node], first_span[node], at_offset[node] = piece, span, offset
    slot = _slot(table, mask, upper, span, offset, first_span, at_offset, parent)
    table[slot] = node


@entry
def _cut_into_blocks(start, end, parent, leaf, block_size, by_block):  # type: ignore[no-untyped-def]
    """Nodes that at least two requests pass, in whole blocks, and every request's way through them."""
    passing = np.zeros(start.size, dtype=np.int64)
    for r in range(leaf.size):
        node = leaf[r]
        while node > 0:
            passing[node] += 1
            node = parent[node]
    number = np.full(start.size, -1, dtype=np.int64)
    count = 0
    for node in range(1, start.size):
        blocks = end[node] // block_size - start[node] // block_size
        if passing[node] > 1 and blocks > 0:
            number[node] = count
            count += blocks if by_block else 1
    path_start = np.zeros(leaf.size + 1, dtype=np.int64)
    own_start = np.zeros(leaf.size, dtype=np.int32)
    for r in range(leaf.size):
        length = 0
        node = leaf[r]
        while node > 0:
            if passing[node] > 1:
                own_start[r] = max(own_start[r], end[node] // block_size)
                if number[node] >= 0:
                    length += end[node] // block_size - start[node] // block_size if by_block else 1
            node = parent[node]
        path_start[r + 1] = path_start[r] + length
    paths = np.zeros((path_start[-1], 3), dtype=np.int32)
    for r in range(leaf.size):
        at = path_start[r + 1]
        node = leaf[r]
        while node > 0:
            if number[node] >= 0:
                first = start[node] // block_size
                blocks = end[node] // block_size - first
                steps = blocks if by_block else 1
                at -= steps
                for i in range(steps):
                    paths[at + i, 0] = number[node] + i
                    paths[at + i, 1] = first + i
                    paths[at + i, 2] = 1 if by_block else blocks
            node = parent[node]
    return path_start, paths, count, own_start
