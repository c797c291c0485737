"""The HTTP API: paths, bodies, and which error becomes which status."""

from __future__ import annotations

import logging
from typing import Annotated, Any

from fastapi import FastAPI, Path, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from ..memory.errors import RaygamError
from ..memory.model import DEFAULT_TENANT, User
from ..pipeline.config import Settings
from ..pipeline.metrics import Metrics
from ..pipeline.records import check_user
from .answers import Failure, document, failed, failure_of, failure_of_body, failure_of_status
from .gate import Gate
from .service import MemoryService

log = logging.getLogger("raygam.serving")

MAX_DEADLINE_MS = 60_000
UserId = Annotated[str, Path(description="The user whose memory is meant; percent-encoded.")]
Deadline = Annotated[
    int | None,
    Field(ge=1, le=MAX_DEADLINE_MS, description="Answer within so many milliseconds, or with 503."),
]


class SearchRequest(BaseModel):
    """A query."""

    model_config = ConfigDict(extra="forbid", strict=True)

    query: str = Field(description="What is asked.")
    k: int = Field(10, ge=1, le=1000, description="How many memories.")
    mode: str = Field("gam", description="gam or flat.")
    min_position: int | None = Field(None, ge=0, description="See at least this position (of an answer to turns).")
    as_of: str | None = Field(None, description="Only what was said by this time (ISO 8601).")
    deadline_ms: Deadline = None


class TurnsRequest(BaseModel):
    """Turns of one user, in order; end records may stand among them."""

    model_config = ConfigDict(extra="forbid", strict=True)

    turns: list[Any] = Field(min_length=1, description="Turns, as in a file; user_id may be left out.")
    deadline_ms: Deadline = None


def make_app(service: MemoryService, settings: Settings, metrics: Metrics, engine: str) -> FastAPI:
    """The application of one ingress replica.

    Args:
        service: what it asks.
        settings: deadline and limits.
        metrics: where figures go.
        engine: the engine's name, told by `/healthz`.
    """
    app = FastAPI(title="raygam", description="A long-term memory for every user.", docs_url=None, redoc_url=None)
    app.add_middleware(
        Gate,
        max_body_bytes=settings.serve_max_body_bytes,
        max_requests=settings.serve_max_requests,
        metrics=metrics,
    )
    _add_failures(app)

    def seconds(deadline_ms: int | None) -> float:
        return settings.serve_deadline_seconds if deadline_ms is None else deadline_ms / 1000

    @app.post("/v1/users/{user:path}/search")
    async def search(user: UserId, body: SearchRequest) -> Response:
        """Ask a user's memory: ranked memories, topics, and a context for a prompt."""
        options = {"k": body.k, "mode": body.mode, "min_position": body.min_position, "as_of": body.as_of}
        return document(await service.search(_owner(user), body.query, options, seconds(body.deadline_ms)))

    @app.post("/v1/users/{user:path}/turns")
    async def turns(user: UserId, body: TurnsRequest) -> Response:
        """Store turns of a user; they are durable and searchable once this is answered."""
        receipt = await service.add(_owner(user), body.turns, seconds(body.deadline_ms))
        return document(
            {
                "accepted": receipt.accepted,
                "duplicates": receipt.duplicates,
                "position": receipt.position,
                "partition": receipt.partition,
            }
        )

    @app.get("/healthz")
    async def healthz() -> Response:
        """The process lives."""
        return document({"status": "ok", "engine": engine})

    @app.get("/readyz")
    async def readyz() -> Response:
        """Every partition has a shard that answers, and an embedder does."""
        found = await service.readiness()
        if found.missing:
            message = f"not ready: {'; '.join(found.missing)}"
            return failed(Failure(503, "not_ready", message, {"missing": list(found.missing)}))
        return document({"status": "ready", "partitions": found.partitions})

    return app


def _owner(user: str) -> User:
    return check_user(DEFAULT_TENANT, user)


def _add_failures(app: FastAPI) -> None:
    @app.exception_handler(RaygamError)
    async def engine_failed(request: Request, error: RaygamError) -> Response:
        failure = failure_of(error)
        if failure.status == 500:
            log.error("a request failed", extra={"path": request.url.path, "error": str(error)})
        return failed(failure)

    @app.exception_handler(RequestValidationError)
    async def body_is_wrong(request: Request, error: RequestValidationError) -> Response:
        return failed(failure_of_body(error))

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        return failed(failure_of_status(error.status_code, error.detail))

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        log.error("a request failed", exc_info=error, extra={"path": request.url.path})
        return failed(Failure(500, "internal", "the server failed at this request; its log says at what"))
