"""Pinned parallel shapes: what a client may write in `search_space.parallel_configs`.

Source: search.md, section 2.4.
"""

from typing import Annotated, Any

from pydantic import Field

from app.schemas.block import Block, Checked, refuse
from app.schemas.deployment import ParallelShape

Width = Annotated[int, Field(gt=0, le=4096)]


class PinnedRole(Block):
    """One role's shape and replicas; only `tp` is required."""

    tp: Width
    pp: Width = 1
    attention_dp: Width = 1
    moe_tp: Width = 1
    moe_ep: Width = 1
    replicas: Width = 1

    @property
    def shape(self) -> ParallelShape:
        """The shape of one replica."""
        return ParallelShape(
            tp=self.tp, pp=self.pp, attention_dp=self.attention_dp, moe_tp=self.moe_tp, moe_ep=self.moe_ep
        )


class PinnedPair(Block):
    """A disaggregated deployment: both roles."""

    prefill: PinnedRole
    decode: PinnedRole


def _check(value: Any) -> Any:
    """An entry by its own looks: `prefill` or `decode` make it a pair."""
    if isinstance(value, PinnedRole | PinnedPair):
        return value
    if not isinstance(value, dict):
        raise refuse("not_an_object", "is not an object", "write {tp: 2, replicas: 2} or {prefill: …, decode: …}")
    pair = "prefill" in value or "decode" in value
    return (PinnedPair if pair else PinnedRole).model_validate(value)


def _schema() -> dict[str, Any]:
    role = PinnedRole.model_json_schema()
    pair = {"type": "object", "properties": {"prefill": role, "decode": role}, "required": ["prefill", "decode"]}
    return {"anyOf": [role, {**pair, "additionalProperties": False}]}


Pin = Annotated[PinnedRole | PinnedPair, Checked(_check, _schema)]
