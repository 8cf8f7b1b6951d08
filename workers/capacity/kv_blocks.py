"""From KV tokens per rank to whole blocks, role capacity and the requests that fill it.

The closed-loop cap at a load ratio is `workers.traffic.load_shape.kv_load_concurrency`.

Source: traffic spec, section "kv_load_ratio".
"""


def blocks_per_rank(tokens_per_rank: int, block_size: int) -> int:
    """Whole KV blocks of one rank; block_size in tokens.

    Raises: ValueError if block_size < 1.
    """
    if block_size < 1:
        raise ValueError(f"block_size must be at least 1, got {block_size}")
    return tokens_per_rank // block_size


def role_capacity_tokens(tokens_per_rank: int, block_size: int, attention_dp: int, replicas: int) -> int:
    """Tokens a role's pool holds in whole blocks, over all attention-DP ranks and replicas.

    TP and EP ranks shard the same sequences, so they do not multiply.
    """
    return blocks_per_rank(tokens_per_rank, block_size) * block_size * attention_dp * replicas


def capacity_concurrency(role_capacity_tokens: int, isl: int, osl: int) -> int:
    """Requests that fill a role's KV cache on average, rounded down; may be 0.

    Args: role_capacity_tokens, over all ranks and replicas; isl and osl, tokens per request.
    Raises: ValueError if isl < 1 or osl < 1.
    """
    if isl < 1 or osl < 1:
        raise ValueError(f"isl and osl must be at least 1, got {isl} and {osl}")
    return role_capacity_tokens // (isl + osl // 2)
