"""`baseline`: the client's present deployment, always evaluated and compared with the winner."""

from typing import Annotated

from pydantic import Field

from app.schemas.block import Block, Document, Flaw, OneOf
from app.schemas.deployment import RouterConfig
from app.schemas.parallel import PinnedRole

_Tokens = Annotated[int, Field(gt=0, le=10_000_000)]


class BaselineRole(PinnedRole):
    """A role as it runs today; the batching limits default to 8192 tokens and 256 sequences."""

    max_num_batched_tokens: _Tokens = 8192
    max_num_seqs: Annotated[int, Field(gt=0, le=1_000_000)] = 256


class BaselineRouter(Block):
    """Routing as it runs today."""

    mode: Annotated[str, OneOf(("round_robin", "kv_router"))] = "round_robin"
    overlap_score_credit: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    prefill_load_scale: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    temperature: Annotated[float, Field(ge=0, le=1e6)] = 0.0

    def config(self) -> RouterConfig:
        """The router of a deployment; weights only where they act."""
        if self.mode == "round_robin":
            return RouterConfig()
        return RouterConfig(
            mode="kv_router",
            overlap_score_credit=self.overlap_score_credit,
            prefill_load_scale=self.prefill_load_scale,
            temperature=self.temperature,
        )


class Baseline(Block):
    """Either `agg`, or `prefill` and `decode`; model, hardware and block sizes are those of the search space."""

    backend: Annotated[str, OneOf(("vllm", "sglang", "trtllm"))] = "vllm"
    agg: BaselineRole | None = None
    prefill: BaselineRole | None = None
    decode: BaselineRole | None = None
    router: BaselineRouter = BaselineRouter()


def baseline_flaws(document: Document) -> list[Flaw]:
    """Exactly one of the two modes."""
    baseline = document.get("baseline")
    if not isinstance(baseline, dict):
        return []
    roles = {role for role in ("agg", "prefill", "decode") if baseline.get(role) is not None}
    if roles in ({"agg"}, {"prefill", "decode"}):
        return []
    remedy = "give agg alone, or prefill and decode together"
    return [Flaw(("baseline",), "not_one_mode", "is not one deployment mode", remedy, sorted(roles))]
