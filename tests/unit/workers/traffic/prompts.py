"""What the spans of a batch say about its prompts, token by token."""

from workers.traffic.requests import RequestBatch


def spans_of(batch: RequestBatch, request: int) -> list[tuple[int, int]]:
    """(id, tokens) of one prompt's spans."""
    assert batch.span_offset is not None
    assert batch.span_id is not None
    assert batch.span_tokens is not None
    part = slice(int(batch.span_offset[request]), int(batch.span_offset[request + 1]))
    return list(zip(batch.span_id[part].tolist(), batch.span_tokens[part].tolist(), strict=True))


def shared_tokens(batch: RequestBatch, one: int, other: int) -> int:
    """Leading tokens two prompts have in common."""
    if batch.span_id is None:
        return 0
    shared = 0
    for (id_a, tokens_a), (id_b, tokens_b) in zip(spans_of(batch, one), spans_of(batch, other), strict=False):
        if id_a != id_b:
            break
        shared += min(tokens_a, tokens_b)
        if tokens_a != tokens_b:
            break
    return shared
