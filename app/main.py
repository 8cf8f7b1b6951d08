"""The API: joins routes, planner and rescuer. The only module of `app` that knows `workers`."""

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import structlog
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.concurrency import run_in_threadpool

from app.auth import has_keys, is_loopback
from app.config import SERVICE_VERSION, settings
from app.db.engine import is_away, transaction
from app.errors import FieldFault, InvalidRequestError
from app.log import configure_logging
from app.polls import Polls, Readings
from app.routes import candidates, dashboard, events, ops, studies, traces
from app.routes.deps import Planner
from app.routes.metering import Metering
from app.routes.problems import add_handlers
from app.routes.rendered import RenderedPages
from app.routes.shortcut import Shortcut
from app.schemas.plan import Plan
from app.schemas.problem import Problem
from app.schemas.study import SmartSearchConfig
from app.telemetry import start_tracing, stop_tracing
from app.wake import Waker
from workers.errors import EvaluationError
from workers.plan import plan as make_plan
from workers.rescue import rescuer

log = structlog.get_logger()
_DESCRIPTION = "Search jobs for LLM deployments: POST a SmartSearchConfig, get ranked or Pareto-optimal deployments."


def plan_document(config: SmartSearchConfig, trace: Any) -> dict[str, Any]:
    """The plan as a JSON document. Raises: InvalidRequestError if the configuration cannot be planned."""
    try:
        return make_plan(config, trace).model_dump(mode="json")
    except EvaluationError as error:
        raise InvalidRequestError([FieldFault("", None, error.detail)]) from error


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    configure_logging()
    start_tracing("spica-api", SERVICE_VERSION)
    await run_in_threadpool(_refuse_open_door)
    rescue = rescuer()
    app.state.waker.start()
    rescue.start()
    # What start-up left will live as long as the process: not worth looking at in each full collection.
    gc.freeze()
    yield
    await app.state.waker.stop()
    await run_in_threadpool(rescue.stop)
    app.state.readings.close()
    await run_in_threadpool(stop_tracing)


def _refuse_open_door() -> None:
    """Raises: SystemExit if the service would listen beyond this machine without any key, unless told to."""
    if is_loopback(settings().host) or settings().allow_anonymous:
        return
    try:
        with transaction() as db:
            protected = has_keys(db)
    except Exception as error:
        # A database that is away now is no reason not to start: each request checks again.
        if not is_away(error):
            raise
        return
    if not protected:
        raise SystemExit(
            f"refusing to listen on {settings().host} without API keys: create one (python -m app.keys create), "
            "or set SPICA_ALLOW_ANONYMOUS=true"
        )


def create_app(planner: Planner = plan_document) -> FastAPI:
    """The application. planner: configuration and trace summary to a plan document, for dry runs."""
    app = FastAPI(
        title="Spica Studies",
        version=SERVICE_VERSION,
        description=_DESCRIPTION,
        lifespan=_lifespan,
        telemetry={"operation_spans": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    app.state.planner = planner
    app.state.readings = Readings()
    app.state.polls = Polls(app.state.readings)
    app.state.waker = Waker(app.state.polls.versions)
    app.state.rendered = RenderedPages(settings().page_cache_bytes)
    for routes in (studies, events, candidates, traces, ops, dashboard):
        app.include_router(routes.router)
    add_handlers(app)
    app.add_middleware(Shortcut, polls=app.state.polls, rendered=app.state.rendered)
    app.add_middleware(Metering)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document, with the models that it cannot see: those of hand-read bodies and of problems."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        _, definitions = models_json_schema(
            [(SmartSearchConfig, "validation"), (Problem, "serialization"), (Plan, "serialization")],
            ref_template="#/components/schemas/{model}",
        )
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        schemas |= definitions["$defs"]
        for operation in (each for item in document["paths"].values() for each in item.values()):
            if "security" in operation:
                operation["security"].append({})  # on loopback, while no key exists
        for unused in ("HTTPValidationError", "ValidationError"):
            schemas.pop(unused, None)
        app.openapi_schema = document
    return app.openapi_schema


app = create_app()
