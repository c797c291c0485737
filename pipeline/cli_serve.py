"""What `raygam serve` does: the engine on Ray, the HTTP API before it, until it is stopped.

Loaded only by that command: Ray takes a second.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

from ..actors.cluster import Cluster
from ..actors.driving import run_topic
from ..actors.progress import Progress
from ..serving import deployment
from . import display, follow, runtime
from .cli import EXIT_INTERRUPTED
from .config import Settings
from .interruption import Interruption
from .location import AnyState

_POLL_SECONDS = 0.1
_ENDING_SECONDS = 5.0
"""For the rest of an orderly end, which ends Ray too."""


def serve(
    state: AnyState,
    settings: Settings,
    *,
    host: str,
    port: int,
    shards: int | None,
    workers: int | None,
    address: str | None,
    follows: bool,
    on_ready: Callable[[dict[str, Any]], None],
) -> None:
    """Serve a state over HTTP until SIGINT or SIGTERM.

    Args:
        state: where it is; made if it is missing.
        settings: the settings.
        host: where to listen.
        port: where to listen; 0 picks a free port.
        shards: shard actors instead of the settings' number.
        workers: worker actors instead of the settings' number.
        address: a running Ray cluster; None starts Ray on this machine.
        follows: also follow the settings' topic; an error that ends reading ends serving too.
        on_ready: told where it listens, once it answers.

    Raises:
        Misconfigured: the port is taken, or the engine or Ray Serve cannot be started.
        RaygamError: reading the topic ended.
    """
    stop = Interruption("stopping", _leave)
    port = deployment.free_port(host, port)  # before Ray, which takes ten seconds
    deployment.prepare()
    if not _is_loopback(host):
        display.note(f"whoever reaches {host}:{port} can read and write every memory: there are no keys yet")
    if follows:
        settings = follow.fitting(settings, made=runtime.recorded_facts(state) is not None)
    with stop.watching():
        display.note("starting Ray" if address is None else f"joining Ray at {address}", style="dim")
        cluster = Cluster.open(state, settings, shards=shards, workers=workers, address=address)
        stop.watch()  # Ray takes SIGTERM for itself when it starts
        endpoint = None
        following = Following(cluster, settings) if follows else None
        try:
            if not stop.asked:
                endpoint = deployment.start(cluster.spec, host, port)
                on_ready(_told(cluster, endpoint))
                sys.stdout.flush()  # whoever waits for the line may read a pipe
            while not stop.asked and not (following and following.over):
                time.sleep(_POLL_SECONDS)
        finally:
            if following is not None:
                following.stop()
            _end(cluster, endpoint)
    if following is not None:
        following.raise_error()


class Following:
    """The topic, followed in a thread beside the API; it says on the terminal what it waits for."""

    def __init__(self, cluster: Cluster, settings: Settings) -> None:
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._waits: tuple[str, ...] = ()
        self._cluster = cluster
        self._settings = settings
        self._thread = threading.Thread(target=self._run, name="raygam-following", daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        """Whether it has ended by itself."""
        return not self._thread.is_alive()

    def stop(self) -> None:
        """End it at a batch's edge, if the engine answers soon."""
        self._stop.set()
        self._thread.join(timeout=_ENDING_SECONDS)

    def raise_error(self) -> None:
        """Raise what ended it, if it was an error."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            run_topic(self._cluster, self._settings, stop=self._stop.is_set, on_progress=self._tell)
        except BaseException as error:  # noqa: BLE001 - the top of the thread: whoever serves raises it
            if not self._stop.is_set():
                self._error = error

    def _tell(self, progress: Progress) -> None:
        waits = (*progress.paused, *progress.obstacles)
        if waits != self._waits:
            self._waits = waits
            topic = self._settings.kafka_topic
            display.note(f"topic {topic} waits: {waits[0]}" if waits else f"topic {topic} is followed again")


def _told(cluster: Cluster, endpoint: deployment.Endpoint) -> dict[str, Any]:
    return {
        "url": endpoint.url,
        "pid": os.getpid(),
        "state": str(cluster.spec.state),
        "embedder": cluster.spec.facts.embedder,
        "partitions": cluster.spec.facts.partitions,
        "shards": cluster.spec.shards,
        "workers": cluster.spec.workers,
        "joined": cluster.joined,
    }


def _end(cluster: Cluster, endpoint: deployment.Endpoint | None) -> None:
    """End the API, then the engine.

    Who sends SIGTERM to a whole group of processes ends Ray at the same time, and every call to it would
    wait for a minute: then there is nothing left to end. What was acknowledged is durable.
    """

    def end() -> None:
        try:
            if endpoint is not None:
                deployment.stop(endpoint)
        finally:
            cluster.close()

    ending = ThreadPoolExecutor(1).submit(end)
    while not wait([ending], timeout=0.5).done:
        if not _listens(cluster.spec.cluster) and not wait([ending], timeout=_ENDING_SECONDS).done:
            display.note("stopped; Ray was ended at the same time")
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
    ending.result()


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=2).close()
    except OSError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _leave() -> None:
    """End at once: Ray's processes end with the one that started them."""
    os.write(2, b"raygam: stopped\n")
    os._exit(EXIT_INTERRUPTED)
