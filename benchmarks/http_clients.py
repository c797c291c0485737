"""Clients of an HTTP endpoint, in a process of their own: each sends its next request when the last is answered.

    echo '{"url": …, "bodies": […], "clients": 16, "seconds": 5, "warm_seconds": 1}' | python -m benchmarks.http_clients

Standard output is one JSON object: latencies of answered requests, counts by outcome, and the seconds it took.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import aiohttp

OK = "200"


@dataclass(frozen=True, slots=True)
class Load:
    """What a load of clients met.

    Attributes:
        clients: how many.
        seconds: how long they sent.
        latencies_ms: of requests answered with 200, sorted.
        errors: other outcomes, by status or name.
    """

    clients: int
    seconds: float
    latencies_ms: list[float]
    errors: dict[str, int]

    @property
    def rate(self) -> float:
        """Requests answered per second."""
        return len(self.latencies_ms) / self.seconds

    def percentile(self, share: float) -> float:
        """Latency in ms below which `share` of the answered requests lie."""
        if not self.latencies_ms:
            return float("nan")
        return self.latencies_ms[min(int(share * len(self.latencies_ms)), len(self.latencies_ms) - 1)]


def load(url: str, bodies: list[dict[str, Any]], clients: int, seconds: float, warm_seconds: float = 1.0) -> Load:
    """Run clients in another process, so that they share no interpreter with what they measure."""
    job = {"url": url, "bodies": bodies, "clients": clients, "seconds": seconds, "warm_seconds": warm_seconds}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.http_clients"],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        check=True,
        timeout=seconds + warm_seconds + 120,
    )
    found = json.loads(done.stdout)
    return Load(clients, found["seconds"], sorted(found["latencies_ms"]), found["errors"])


async def _run(job: dict[str, Any]) -> dict[str, Any]:
    bodies = itertools.cycle([json.dumps(body).encode() for body in job["bodies"]])
    latencies: list[float] = []
    outcomes: Counter[str] = Counter()
    begins = time.perf_counter() + job["warm_seconds"]
    ends = begins + job["seconds"]

    async def client(session: aiohttp.ClientSession) -> None:
        while (sent := time.perf_counter()) < ends:
            try:
                async with session.post(job["url"], data=next(bodies)) as response:
                    await response.read()
                    outcome = str(response.status)
            except (aiohttp.ClientError, TimeoutError) as error:
                outcome = type(error).__name__
            answered = time.perf_counter()
            if sent >= begins:
                outcomes[outcome] += 1
                if outcome == OK:
                    latencies.append((answered - sent) * 1000)

    connector = aiohttp.TCPConnector(limit=job["clients"])
    headers = {"Content-Type": "application/json"}
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as session:
        await asyncio.gather(*(client(session) for _ in range(job["clients"])))
    errors = {outcome: count for outcome, count in outcomes.items() if outcome != OK}
    return {"latencies_ms": latencies, "errors": errors, "seconds": time.perf_counter() - begins}


if __name__ == "__main__":
    json.dump(asyncio.run(_run(json.load(sys.stdin))), sys.stdout)
