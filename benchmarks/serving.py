"""How fast the HTTP endpoint answers queries, beside a bare Serve application in the same run.

    python -m benchmarks.serving --embedder stub --seconds 10 --json OUT

One user with 600 events is asked by 1, 16 and 64 clients in a process of their own. The
bare application stands on the same Serve with the same settings: an ingress that takes
the same body and passes the query to a batched deployment with the same embedder.
`overhead_ms_p50` is what the endpoint's p50 at one client has beyond the bare one's.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from fastapi import FastAPI
from fastapi.responses import Response
from rich.console import Console

from benchmarks.http_clients import Load, load
from benchmarks.results import Results
from raygam.actors.cluster import Cluster
from raygam.memory.ports import Embedder
from raygam.pipeline import runtime
from raygam.pipeline.config import Settings, read_settings
from raygam.pipeline.library import Memory
from raygam.serving import deployment
from raygam.serving.answers import document
from raygam.serving.api import SearchRequest

console = Console(stderr=True)
app = typer.Typer(add_completion=False)

DIALOGUES = Path(__file__).parents[1] / "examples" / "dialogues.jsonl"
USER = "ana"
CLIENTS = (1, 16, 64)
_BARE_PATH = "/bare"


def write_state(directory: Path, events: int, embedder: str) -> list[str]:
    """Give one user `events` consolidated turns of the examples' dialogues; return texts to ask."""
    lines = [json.loads(line) for line in DIALOGUES.read_text(encoding="utf-8").splitlines()]
    spoken = [line for line in lines if line.get("type", "turn") == "turn"]
    turns = []
    for number in range(events):
        again, at = divmod(number, len(spoken))
        turn = dict(spoken[at])
        turn |= {
            "message_id": f"m{number}",
            "user_id": USER,
            "session_id": f"{turn['user_id']}/{turn['session_id']}/{again}",
            "timestamp": f"{int(turn['timestamp'][:4]) + again}{turn['timestamp'][4:]}".replace("-02-29", "-02-28"),
        }
        turns.append(turn)
    with Memory(directory, embedder=embedder) as memory:
        added = memory.add(turns)
        assert added.accepted == events, f"{added.accepted} of {events} turns were accepted"
        memory.flush(USER)
    return [turn["text"] for turn in spoken]


def start_bare(embedder_name: str, settings: Settings) -> None:
    """Start the bare application on the Serve that runs: ingress → batched deployment."""
    from ray import serve
    from ray.serve.schema import LoggingConfig

    quiet = LoggingConfig(log_level="WARNING", enable_access_log=False)
    room = settings.serve_max_requests + 64
    options: dict[str, Any] = {
        "max_ongoing_requests": room,
        "ray_actor_options": {"num_cpus": 0},
        "logging_config": quiet,
    }

    class Embedding:
        """The same embedder, one thread, batches of whoever waits."""

        def __init__(self) -> None:
            if embedder_name != "stub":
                import torch

                torch.set_num_threads(1)
            self._embedder = runtime.make_embedder(embedder_name, settings)
            self._embedder.embed(["warm"])

        @serve.batch(max_batch_size=64, batch_wait_timeout_s=0.0)
        async def __call__(self, queries: list[str]) -> list[Any]:
            return list(self._embedder.embed(queries))

    def build() -> Any:
        bare = FastAPI()
        handle = serve.get_deployment_handle("embedding", app_name="bare")

        async def search(body: SearchRequest) -> Response:
            vector = await handle.remote(body.query)
            return document({"dimension": len(vector)})

        search.__annotations__ = {"body": SearchRequest}  # types: the names are unknown where this is unpickled
        bare.post("/search")(search)
        return bare

    embedding = serve.deployment(name="embedding", num_replicas=settings.embedder_replicas, **options)(Embedding)
    ingress = serve.deployment(name="ingress", num_replicas=settings.serve_replicas, **options)(serve.ingress(build)())
    serve.run(ingress.bind(embedding.bind()), name="bare", route_prefix=_BARE_PATH, logging_config=quiet)


def bare_embedding_ms(embedder: Embedder, queries: list[str]) -> float:
    """Median time of the embedder alone for one query, in ms."""
    spent = []
    for query in [*queries[:20], *queries[:200]]:
        started = time.perf_counter()
        embedder.embed([query])
        spent.append((time.perf_counter() - started) * 1000)
    return statistics.median(spent[20:])


def merged(loads: list[Load]) -> Load:
    """Several loads of the same clients as one."""
    errors: dict[str, int] = {}
    for one in loads:
        for outcome, count in one.errors.items():
            errors[outcome] = errors.get(outcome, 0) + count
    latencies = sorted(latency for one in loads for latency in one.latencies_ms)
    return Load(loads[0].clients, sum(one.seconds for one in loads), latencies, errors)


def measure(urls: dict[str, str], queries: list[str], seconds: float, rounds: int) -> dict[tuple[str, int], Load]:
    """Load each endpoint by turns, so that a machine that slows down slows both."""
    bodies = [{"query": query, "k": 10} for query in queries]
    found = {}
    for clients in CLIENTS:
        loads: dict[str, list[Load]] = {name: [] for name in urls}
        for _ in range(rounds):
            for name, url in urls.items():
                loads[name].append(load(url, bodies, clients, seconds / rounds))
        for name, several in loads.items():
            one = found[name, clients] = merged(several)
            console.print(
                f"{name}, {clients} clients: {one.rate:,.0f} requests/s, p50 {one.percentile(0.5):.1f} ms, "
                f"p99 {one.percentile(0.99):.1f} ms, errors {one.errors or 0}"
            )
    return found


def report(results: Results, found: dict[tuple[str, int], Load], embedding_ms: float, params: dict[str, Any]) -> None:
    """Put the figures into the results; the endpoint's at one client come first."""
    for endpoint in ("search", "bare"):
        for clients in CLIENTS:
            one = found[endpoint, clients]
            here = params | {"endpoint": endpoint, "clients": clients}
            results.add("requests_per_second", one.rate, "requests/s", **here)
            for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
                results.add(f"latency_ms_{name}", one.percentile(share), "ms", **here)
            outcomes = {"outcomes": one.errors} if one.errors else {}
            results.add("errors", sum(one.errors.values()), "requests", **here, **outcomes)
    p50 = found["search", 1].percentile(0.5)
    results.add("overhead_ms_p50", p50 - found["bare", 1].percentile(0.5), "ms", **params, beyond="bare Serve")
    results.add("overhead_ms_p50", p50 - embedding_ms, "ms", **params, beyond="embedder in one process")
    for clients in reversed(CLIENTS):
        share_of_bare = found["search", clients].rate / found["bare", clients].rate
        results.add("share_of_bare", share_of_bare, "fraction", **params, clients=clients)


@app.command()
def main(
    seconds: Annotated[float, typer.Option(min=1, help="Of each measurement.")] = 10.0,
    rounds: Annotated[int, typer.Option(min=1, help="Into so many parts, the two endpoints by turns.")] = 2,
    embedder: Annotated[str, typer.Option(help="stub or minilm")] = "stub",
    events: Annotated[int, typer.Option(min=1, help="Of the user that is asked.")] = 600,
    shards: Annotated[int, typer.Option(min=1)] = 2,
    replicas: Annotated[int, typer.Option(min=1, help="Ingress replicas, of both endpoints.")] = 1,
    haproxy: Annotated[bool, typer.Option(help="Ray Serve's HAProxy in place of its own proxy, for both.")] = False,
    json_out: Annotated[Path | None, typer.Option("--json", help="Write the results here; - is stdout.")] = None,
) -> None:
    """Measure the endpoint and the bare application in one run."""
    if haproxy:
        os.environ |= {"RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"}
    deployment.prepare()
    settings = read_settings(embedder=embedder, shards=shards, serve_replicas=replicas, workers=1)
    results = Results("serving", seed=0)
    params = {
        "embedder": embedder, "events": events, "shards": shards, "replicas": replicas,
        "proxy": "haproxy" if haproxy else "serve", "seconds": seconds,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="raygam-serving-") as folder:
        queries = write_state(Path(folder) / "state", events, embedder)
        embedding_ms = bare_embedding_ms(runtime.make_embedder(embedder, settings), queries)
        port = deployment.free_port("127.0.0.1", 0)
        cluster = Cluster.open(Path(folder) / "state", settings)
        try:
            endpoint = deployment.start(cluster.spec, "127.0.0.1", port)
            start_bare(embedder, settings)
            urls = {
                "search": f"{endpoint.url}/v1/users/{USER}/search",
                "bare": f"{endpoint.url}{_BARE_PATH}/search",
            }
            report(results, measure(urls, queries, seconds, rounds), embedding_ms, params)
            deployment.stop(endpoint)
        finally:
            cluster.close()
    results.show()
    results.write(json_out)


if __name__ == "__main__":
    app()
