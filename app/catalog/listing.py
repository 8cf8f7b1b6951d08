"""The body of `GET /catalog`: what can be searched, and which combinations have data."""

from dataclasses import asdict
from typing import Any

from app.catalog import snapshot, suggest


def listing(model: str | None = None, hardware: str | None = None, backend: str | None = None) -> dict[str, Any]:
    """Models, hardware, backends and combinations, JSON-ready and stable; the arguments keep one name of each."""
    models = [name for name in snapshot.MODELS if model in (None, name)]
    places = [name for name in snapshot.HARDWARE if hardware in (None, name)]
    backends = [name for name in snapshot.BACKENDS if backend in (None, name)]
    distribution, version = snapshot.PACKAGE
    return {
        "perf_data": {"package": distribution, "version": version},
        "models": [asdict(snapshot.MODELS[name]) | {"aliases": _aliases(name)} for name in models],
        "hardware": [asdict(snapshot.HARDWARE[name]) | {"aliases": _aliases(name)} for name in places],
        "backends": backends,
        "combinations": [
            combination
            for place in places
            for engine in backends
            if (combination := _combination(place, engine, models)) is not None
        ],
    }


def _combination(hardware: str, backend: str, models: list[str]) -> dict[str, Any] | None:
    """One (hardware, backend) with its data versions and, per model, the parallel shapes that have data."""
    versions = snapshot.available_versions(hardware, backend)
    if not versions:
        return None
    return {
        "hardware": hardware,
        "backend": backend,
        "data_version": versions[0],
        "available_versions": list(versions),
        "models": {
            name: [_shape_name(shape) for shape in snapshot.shapes_of(name) if shape in with_data]
            for name in models
            if (with_data := snapshot.shapes_with_data(name, hardware, backend))
        },
    }


def _shape_name(shape: snapshot.ShapeTuple) -> str:
    """ "tp8", or for MoE "tp8-moe_ep8": sizes above one, "tp1" for a single GPU."""
    tp, attention_dp, moe_tp, moe_ep = shape
    sizes = {"tp": tp, "dp": attention_dp, "moe_tp": moe_tp, "moe_ep": moe_ep}
    return "-".join(f"{name}{size}" for name, size in sizes.items() if size > 1) or "tp1"


def _aliases(name: str) -> list[str]:
    short = suggest.short_name(name)
    meant = suggest.canonical_model(short) or suggest.canonical_hardware(short)
    return [short] if short != name and meant == name else []
