"""Names of the catalogue that a configuration may use; the one place where the schemas ask for them."""

from collections.abc import Sequence
from typing import Any

from app.schemas.block import nearest, refuse


def model_names() -> Sequence[str]:
    """Models in the catalogue, as the model hub spells them."""
    return _MODELS


def hardware_skus() -> Sequence[str]:
    """Systems in the catalogue."""
    return _SKUS


def known_model(name: Any) -> Any:
    """The name, if the catalogue has it; never a call to a model hub."""
    return _known(name, model_names(), "model")


def known_sku(name: Any) -> Any:
    """The system's name, if the catalogue has it."""
    return _known(name, hardware_skus(), "hardware")


def _known(name: Any, names: Sequence[str], kind: str) -> Any:
    if name in names:
        return name
    close = nearest(name, names, 3)
    hint = f"did you mean {', '.join(repr(each) for each in close)}? " if close else ""
    raise refuse(f"unknown_{kind}", f"is not a {kind} in the catalogue", f"{hint}GET /catalog lists all {len(names)}")


_MODELS = (
    "Qwen/Qwen3-235B-A22B-FP8",
    "Qwen/Qwen3-30B-A3B-FP8",
    "Qwen/Qwen3-32B",
    "Qwen/Qwen3-32B-FP8",
    "Qwen/Qwen3-8B",
    "deepseek-ai/DeepSeek-R1",
    "deepseek-ai/DeepSeek-V3",
    "meta-llama/Meta-Llama-3.1-70B",
    "meta-llama/Meta-Llama-3.1-8B",
    "openai/gpt-oss-120b",
)
_SKUS = ("a100_sxm", "b200_sxm", "gb200", "h100_sxm", "h200_sxm", "l40s")
