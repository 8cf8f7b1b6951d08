"""For operators and clients alike: catalog, health, readiness, metrics."""

from typing import Any

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from app.catalog.snapshot import BACKENDS, HARDWARE, MODELS, PACKAGE, available_versions, has_data
from app.db import readiness
from app.queue import is_broker_reachable
from app.routes.deps import DoorDep
from app.routes.json_text import json_bytes, json_response
from app.routes.metering import gauges
from app.routes.pages import cache_headers, etag, is_unchanged, name_of, not_modified
from app.routes.problems import UNCHANGED, Kind, Responses, problem_response, problems
from app.schemas.catalog_view import CatalogView, Health

router = APIRouter(tags=["operations"])
_TEXT: Responses = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}


@router.get("/catalog", response_model=CatalogView, responses=problems() | UNCHANGED)
def catalog(request: Request, door: DoorDep) -> Response:
    """Models, hardware, backends and data versions that can be searched, and which combinations have data."""
    door.caller("read")
    tag = etag(name_of(request, "/".join(PACKAGE)), 1)
    if is_unchanged(request.headers.get("if-none-match"), tag):
        return not_modified(tag)
    return Response(json_bytes(_catalog()), headers=cache_headers(tag), media_type="application/json")


def _catalog() -> dict[str, Any]:
    pairs = [(hardware, backend) for hardware in sorted(HARDWARE) for backend in BACKENDS]
    return {
        "perf_data": {"package": PACKAGE[0], "version": PACKAGE[1]},
        "models": [
            {"name": name, "is_moe": MODELS[name].is_moe, "max_context_tokens": MODELS[name].max_context_tokens}
            for name in sorted(MODELS)
        ],
        "hardware": [
            {"name": name, "memory_bytes": HARDWARE[name].memory_bytes, "gpus_per_node": HARDWARE[name].gpus_per_node}
            for name in sorted(HARDWARE)
        ],
        "backends": list(BACKENDS),
        "data": [
            {
                "hardware_sku": hardware,
                "backend": backend,
                "versions": available_versions(hardware, backend),
                "models": [model for model in sorted(MODELS) if has_data(model, hardware, backend)],
            }
            for hardware, backend in pairs
            if available_versions(hardware, backend)
        ],
    }


@router.get("/healthz", response_model=Health)
async def healthz() -> Response:
    """The process is alive. Asks nobody else."""
    return json_response({"status": "ok", "parts": {}})


@router.get("/readyz", response_model=Health, responses=problems())
def readyz() -> Response:
    """Database, its schema version and the broker can be used; if not, says which cannot."""
    parts = {"database": readiness.database(), "broker": "ok" if is_broker_reachable() else "not reachable"}
    missing = [f"{name}: {state}" for name, state in parts.items() if state != "ok"]
    if missing:
        return problem_response(Kind(503, "not-ready", "Not ready"), "; ".join(missing), extensions={"parts": parts})
    return json_response({"status": "ok", "parts": parts})


@router.get(
    "/metrics",
    response_class=Response,
    responses=_TEXT | problems(),
)
def metrics(door: DoorDep) -> Response:
    """Prometheus metrics over all projects: studies and trials by status, queue lengths, latency by route. For admins."""
    with door.open("admin") as (db, _caller):
        gauges(db)
    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)
