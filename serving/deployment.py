"""The API under Ray Serve: one ingress deployment over the engine's own actors.

The engine's embedder replicas and shards are actors of their supervisor, not Serve
deployments: who owns a partition is decided by an epoch, not by a router.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import socket
import time
from dataclasses import dataclass
from typing import Any

from ..actors import logs
from ..actors.metrics import RayMetrics
from ..actors.spec import ClusterSpec
from ..memory.errors import Misconfigured
from .api import make_app
from .service import make_service

_START_SECONDS = 30.0
_QUEUED = 1024

# One event loop serves a replica's requests, and log lines leave in groups: nothing here
# blocks the loop, so Serve's further thread per replica only costs.
_SERVE_ENVIRONMENT = {
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
    "RAY_SERVE_REQUEST_PATH_LOG_BUFFER_SIZE": "1000",
    "RAY_SERVE_LOG_TO_STDERR": "0",
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A started API.

    Attributes:
        name: of the Serve application.
        host: where it listens.
        port: where it listens.
    """

    name: str
    host: str
    port: int

    @property
    def url(self) -> str:
        """How clients on this machine reach it."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


def prepare() -> None:
    """Set what Serve's processes read from the environment, before Ray is started; what is set stays."""
    for name, value in _SERVE_ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def free_port(host: str, port: int) -> int:
    """Return the port, or a free one for 0.

    Raises:
        Misconfigured: somebody has it, or the host is none of this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise Misconfigured(
                f"cannot listen at {host}, port {port} ({error.strerror}); give another --port (0 picks one) or --host"
            ) from error
        found: int = probe.getsockname()[1]
        return found


def start(spec: ClusterSpec, host: str, port: int) -> Endpoint:
    """Start the API over a running engine; it answers on return.

    Args:
        spec: the engine.
        host: where to listen.
        port: a free one.

    Raises:
        Misconfigured: Serve runs on this cluster for something else, or the API did not start.
    """
    from ray import serve
    from ray.serve.config import HTTPOptions
    from ray.serve.schema import LoggingConfig

    logging.getLogger("ray.serve").setLevel(logging.WARNING)  # this process' terminal; importing Serve sets it
    settings = spec.settings
    endpoint = Endpoint(spec.prefix.rstrip("/"), host, port)
    quiet = LoggingConfig(log_level="WARNING", enable_access_log=False)

    def build() -> Any:
        """In the replica's process."""
        logs.configure("serve")
        return make_app(make_service(spec), settings, RayMetrics(), endpoint.name)

    deployment = serve.deployment(
        name="memory",
        num_replicas=settings.serve_replicas,
        max_ongoing_requests=settings.serve_max_requests + 64,  # beyond the limit the replica itself refuses
        max_queued_requests=_QUEUED,
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_timeout_s=settings.serve_deadline_seconds + 1,
        graceful_shutdown_wait_loop_s=0.1,
        logging_config=quiet,
    )(serve.ingress(build)())
    try:
        serve.start(proxy_location="HeadOnly", http_options=HTTPOptions(host=host, port=port), logging_config=quiet)
        serve.run(deployment.bind(), name=endpoint.name, route_prefix="/", logging_config=quiet)
    except Exception as error:  # Serve raises plain RuntimeErrors too: told as one, with its own word
        reason = str(error).strip().rpartition("\n")[2]  # before it stand traces of Serve's own processes
        raise Misconfigured(
            f"Ray Serve did not start the API: {reason}; what else runs on it is shown by `serve status` and ended by "
            "`serve shutdown`"
        ) from error
    _wait_until_it_answers(endpoint)
    return endpoint


def stop(endpoint: Endpoint) -> None:
    """Answer what is under way, and end the API; Serve itself too, if nothing else runs on it."""
    from ray import serve

    end: Any = serve.shutdown
    serve.delete(endpoint.name)
    if not serve.status().applications:
        end()


def _wait_until_it_answers(endpoint: Endpoint) -> None:
    """Wait for an answer of this very API: a Serve that ran before keeps its own host and port."""
    deadline = time.monotonic() + _START_SECONDS
    while True:
        if _engine_at(endpoint) == endpoint.name:
            return
        if time.monotonic() >= deadline:
            raise Misconfigured(
                f"nothing of this engine answers at {endpoint.url}; if Ray Serve ran on this cluster before, it "
                "keeps its host and port: give those, or end it with `serve shutdown`"
            )
        time.sleep(0.05)


def _engine_at(endpoint: Endpoint) -> str:
    host, _, port = endpoint.url.removeprefix("http://").rpartition(":")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=2)
    try:
        connection.request("GET", "/healthz")
        found = json.loads(connection.getresponse().read())
    except (OSError, http.client.HTTPException, ValueError):
        return ""
    finally:
        connection.close()
    return str(found.get("engine", "")) if isinstance(found, dict) else ""
