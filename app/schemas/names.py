"""Names of the catalogue that a configuration may use; the one place where the schemas ask for them."""

from collections.abc import Sequence
from typing import Any

from app.catalog import snapshot, suggest
from app.schemas.block import refuse


def model_names() -> Sequence[str]:
    """Models in the catalogue, as the model hub spells them."""
    return list(snapshot.MODELS)


def hardware_skus() -> Sequence[str]:
    """Systems in the catalogue."""
    return list(snapshot.HARDWARE)


def known_model(name: Any) -> Any:
    """The name, if the catalogue has it; never a call to a model hub."""
    return _known(name, model_names(), "model")


def known_sku(name: Any) -> Any:
    """The system's name, if the catalogue has it."""
    return _known(name, hardware_skus(), "hardware")


def _known(name: Any, names: Sequence[str], kind: str) -> Any:
    if name in names:
        return name
    close = suggest.nearest(name, names) if isinstance(name, str) else []
    hint = f"did you mean {', '.join(repr(each) for each in close)}? " if close else ""
    raise refuse(f"unknown_{kind}", f"is not a {kind} in the catalogue", f"{hint}GET /catalog lists all {len(names)}")
