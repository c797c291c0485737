"""What `raygam serve` does: the engine on Ray, the HTTP API before it, until it is stopped.

Loaded only by that command: Ray takes a second.
"""

from __future__ import annotations

import ipaddress
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from ..actors.cluster import Cluster
from ..serving import deployment
from . import display
from .config import Settings

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Set by the first SIGINT or SIGTERM; the second one ends the process without waiting."""

    def __init__(self) -> None:
        self.asked = False

    def listen(self) -> dict[int, Any]:
        """Catch the signals from now on; return what caught them before."""
        return {number: signal.signal(number, self._handle) for number in _SIGNALS}

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Catch the signals inside the block."""
        before = self.listen()
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        display.note("stopping; once more to stop at once")


def serve(
    state: Path,
    settings: Settings,
    *,
    host: str,
    port: int,
    shards: int | None,
    workers: int | None,
    address: str | None,
    on_ready: Callable[[dict[str, Any]], None],
) -> None:
    """Serve a state directory over HTTP until SIGINT or SIGTERM.

    Args:
        state: the state directory, made if it is missing.
        settings: the settings.
        host: where to listen.
        port: where to listen; 0 picks a free port.
        shards: shard actors instead of the settings' number.
        workers: worker actors instead of the settings' number.
        address: a running Ray cluster; None starts Ray on this machine.
        on_ready: told where it listens, once it answers.

    Raises:
        Misconfigured: the port is taken, or the engine or Ray Serve cannot be started.
    """
    stop = Stop()
    port = deployment.free_port(host, port)  # before Ray, which takes ten seconds
    deployment.prepare()
    if not _is_loopback(host):
        display.note(f"whoever reaches {host}:{port} can read and write every memory: there are no keys yet")
    with stop.listening():
        display.note("starting Ray" if address is None else f"joining Ray at {address}", style="dim")
        cluster = Cluster.open(state, settings, shards=shards, workers=workers, address=address)
        try:
            stop.listen()  # Ray takes SIGTERM for itself when it starts
            if not stop.asked:
                _serve(cluster, host, port, stop, on_ready)
        finally:
            cluster.close()


def _serve(cluster: Cluster, host: str, port: int, stop: Stop, on_ready: Callable[[dict[str, Any]], None]) -> None:
    endpoint = deployment.start(cluster.spec, host, port)
    try:
        on_ready(
            {
                "url": endpoint.url,
                "pid": os.getpid(),
                "state": str(cluster.spec.state),
                "embedder": cluster.spec.facts.embedder,
                "partitions": cluster.spec.facts.partitions,
                "shards": cluster.spec.shards,
                "workers": cluster.spec.workers,
                "joined": cluster.joined,
            }
        )
        while not stop.asked:
            time.sleep(0.1)
    finally:
        deployment.stop(endpoint)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
