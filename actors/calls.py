"""Calls to actors: Ray's failures become the errors that callers act on."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import (
    ActorUnavailableError,
    GetTimeoutError,
    RayActorError,
    RayError,
    RaySystemError,
    RayTaskError,
)

from ..memory.errors import Retryable
from .spec import NAMESPACE


class Unreachable(Retryable):
    """An actor is dead, or does not answer. What was called may have been done all the same."""


class Dead(Unreachable):
    """An actor is dead, by Ray's word."""


def find(name: str) -> Any:
    """The handle of a named actor.

    Raises:
        Dead: there is none.
    """
    try:
        return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        raise Dead(f"there is no actor {name}; it has ended, or is not started yet") from None


def result(reference: Any, timeout: float | None = None, what: str = "the call") -> Any:
    """Wait for a call.

    Raises:
        Unreachable: the actor died, or did not answer in time; what it was told may be done.
        Exception: what the called method raised.
    """
    try:
        return ray.get(reference, timeout=timeout)
    except BaseException as error:
        raise translated(error, what) from error


def results(references: Sequence[Any], timeout: float | None = None, what: str = "the calls") -> list[Any]:
    """Wait for several calls; errors as in `result`."""
    return [result(reference, timeout, what) for reference in references]


def give_up(reference: Any) -> None:
    """Let a call of an async actor be cancelled; nobody waits for its answer any more."""
    with contextlib.suppress(RayError):
        ray.cancel(reference)


def translated(error: BaseException, what: str) -> BaseException:
    """Ray's error as ours; what a method raised comes out as it was raised."""
    if isinstance(error, RayTaskError):
        return error.cause if isinstance(error.cause, BaseException) else error
    if isinstance(error, ActorUnavailableError):
        return Unreachable(f"{what}: the actor cannot be reached for now")
    if isinstance(error, RayActorError):
        return Dead(f"{what}: the actor is dead")
    if isinstance(error, GetTimeoutError):
        return Unreachable(f"{what}: no answer in time")
    if isinstance(error, RaySystemError):
        return Unreachable(f"{what}: Ray cannot reach the actor ({error})")
    return error
