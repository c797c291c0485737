"""Answers as JSON: documents, and every failure in the one form `{"error": {"type", "message"}}`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response

from ..memory.errors import RaygamError, Rejected, Retryable, Stale

_RETRY_AFTER_SECONDS = 1
_SHOWN = 20
_BY_STATUS = {404: "not_found", 405: "method_not_allowed", 413: "too_large"}


@dataclass(frozen=True, slots=True)
class Failure:
    """A refused or failed request.

    Attributes:
        status: HTTP's.
        type: a word that programs act on.
        message: what happened and what to do.
        more: further fields of the error object.
    """

    status: int
    type: str
    message: str
    more: dict[str, Any] = field(default_factory=dict)


def document(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Answer with a JSON document."""
    return Response(msgspec.json.encode(value), status, headers, "application/json")


def failed(failure: Failure) -> Response:
    """Answer with an error; what may be tried again says when."""
    headers = {"Retry-After": str(_RETRY_AFTER_SECONDS)} if failure.status == 503 else None
    error = {"type": failure.type, "message": failure.message} | failure.more
    return document({"error": error}, failure.status, headers)


def failure_of(error: RaygamError) -> Failure:
    """How an error of the engine is told."""
    if isinstance(error, Rejected):
        return Failure(400, "rejected", str(error))
    if isinstance(error, Stale):
        return Failure(409, "stale", str(error), {"position": error.position})
    if isinstance(error, Retryable):
        return Failure(503, "unavailable", str(error))
    return Failure(500, "internal", str(error))


def failure_of_body(error: RequestValidationError) -> Failure:
    """How a body that has not the right form is told: each field that is wrong, with what it takes."""
    lines = []
    for item in error.errors():
        where = ".".join(str(part) for part in item["loc"] if part != "body") or "the body"
        if item["type"] == "json_invalid":
            reason = item.get("ctx", {}).get("error", item["msg"])
            lines.append(f"the body is not JSON at character {item['loc'][-1]} ({reason})")
        elif where == "the body" and item["type"] != "missing":
            lines.append("the body is not read as a JSON object; send one, with Content-Type: application/json")
        else:
            given = item.get("input")
            shown = "" if item["type"] == "missing" or given is None else f" (got {given!r:.64})"
            lines.append(f"{where}: {item['msg']}{shown}")
    more = "; …" if len(lines) > _SHOWN else ""
    return Failure(400, "rejected", "; ".join(lines[:_SHOWN]) + more)


def failure_of_status(status: int, detail: object) -> Failure:
    """How what the web framework refuses is told."""
    kind = _BY_STATUS.get(status, "rejected" if status < 500 else "internal")
    return Failure(status, kind, str(detail))
