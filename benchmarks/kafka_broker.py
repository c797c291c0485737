"""A Kafka broker of one's own: one process, free loopback ports, a directory that goes with it.

Tests and benchmarks start it from an unpacked release of Apache Kafka (`KAFKA_HOME`), kill it as a
power cut would, and start it again on the same ports and the same data.
"""

from __future__ import annotations

import base64
import importlib.util
import os
import random
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_LOG4J = """\
Configuration:
  Appenders:
    Console:
      name: STDOUT
      PatternLayout: {pattern: "%d %p %c %m%n"}
  Loggers:
    Root: {level: WARN, AppenderRef: [{ref: STDOUT}]}
"""
_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
    # A restarted broker waits for its own old session.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    # A transaction whose producer died holds up every reader of its partitions until it is aborted.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
START_SECONDS = 60.0


class BrokerFailed(RuntimeError):
    """The broker did not start; the message holds the end of its log."""


def kafka_home() -> Path | None:
    """The release that `KAFKA_HOME` names, if it has jars and there is a Java to run them."""
    named = os.environ.get("KAFKA_HOME")
    if not named or shutil.which("java") is None:
        return None
    home = Path(named).resolve()
    return home if any((home / "libs").glob("kafka_*.jar")) else None


@dataclass(frozen=True, slots=True)
class GivenBroker:
    """A broker that somebody else runs: it can be used, not killed."""

    address: str


@contextmanager
def broker_at_hand(directory: Path) -> Iterator[KafkaBroker | GivenBroker | None]:
    """The broker that `RAYGAM_TEST_KAFKA` names, else one of `KAFKA_HOME`, else one in a container, else None.

    Args:
        directory: an empty directory for a broker of one's own.
    """
    named = os.environ.get("RAYGAM_TEST_KAFKA")
    home = kafka_home()
    if named:
        yield GivenBroker(named)
    elif home is not None:
        broker = KafkaBroker(home, directory)
        try:
            broker.start()
            yield broker
        finally:
            broker.stop()
    elif importlib.util.find_spec("testcontainers") is not None:
        from testcontainers.kafka import KafkaContainer

        with KafkaContainer() as container:
            yield GivenBroker(container.get_bootstrap_server())
    else:
        yield None


class KafkaBroker:
    """A broker that is also its own controller.

    Args:
        home: an unpacked release.
        directory: an empty directory for its settings, data and log.
        listeners: further listeners by name: the security protocol each speaks.
        advertised: for a listener, the address that clients are told instead of its own.
        settings: further lines of `server.properties`.
        format_arguments: further arguments of the storage tool (`--add-scram …`).
    """

    def __init__(
        self,
        home: Path,
        directory: Path,
        *,
        listeners: Mapping[str, str] | None = None,
        advertised: Mapping[str, str] | None = None,
        settings: Mapping[str, str] | None = None,
        format_arguments: Sequence[str] = (),
    ) -> None:
        self.directory = directory
        self._classpath = f"{home}/libs/*"
        self._process: subprocess.Popen[bytes] | None = None
        protocols = {"PLAINTEXT": "PLAINTEXT"} | dict(listeners or {}) | {"CONTROLLER": "PLAINTEXT"}
        self._ports = dict(zip(protocols, free_ports(len(protocols)), strict=True))
        told = {name: self.address_of(name) for name in protocols if name != "CONTROLLER"} | dict(advertised or {})
        properties = {
            **_SETTINGS,
            "controller.quorum.voters": f"1@{self.address_of('CONTROLLER')}",
            "listeners": ",".join(f"{name}://{self.address_of(name)}" for name in protocols),
            "advertised.listeners": ",".join(f"{name}://{address}" for name, address in told.items()),
            "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
            "log.dirs": str(directory / "data"),
            **(settings or {}),
        }
        self._properties = directory / "server.properties"
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        (directory / "log4j2.yaml").write_text(_LOG4J)
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self._run_tool("format", f"--cluster-id={cluster}", "-c", str(self._properties), *format_arguments)

    @property
    def address(self) -> str:
        """`host:port` of the listener without security."""
        return self.address_of("PLAINTEXT")

    def address_of(self, listener: str) -> str:
        """`host:port` of a listener."""
        return f"127.0.0.1:{self._ports[listener]}"

    def start(self) -> None:
        """Start it; return when it serves clients.

        Raises:
            BrokerFailed: it ended, or took longer than `START_SECONDS`.
        """
        from kafka import KafkaAdminClient  # half a second, which only those pay who start a broker
        from kafka.errors import KafkaError

        with (self.directory / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*_ending_with_parent(), *self._java(), "kafka.Kafka", str(self._properties)],
                start_new_session=True,  # Ctrl-C is this process's to act on
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._ports["PLAINTEXT"]), timeout=1).close()
                KafkaAdminClient(bootstrap_servers=self.address, bootstrap_timeout_ms=2000).close()
                return
            except (OSError, KafkaError):
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise BrokerFailed(f"the Kafka broker did not start:\n{self._log_end()}") from None
                time.sleep(0.05)

    def kill(self) -> None:
        """End it as a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """End it; what it holds is not needed any more."""
        self.kill()

    def _java(self) -> list[str]:
        options = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
        log = f"-Dlog4j2.configurationFile={self.directory / 'log4j2.yaml'}"
        return ["java", *options, log, "-cp", self._classpath]

    def _run_tool(self, *arguments: str) -> None:
        done = subprocess.run(
            [*self._java(), "kafka.tools.StorageTool", *arguments], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise BrokerFailed(f"the Kafka storage tool failed:\n{done.stdout}{done.stderr}")

    def _log_end(self) -> str:
        return (self.directory / "broker.log").read_text(errors="replace")[-4000:]


def free_ports(count: int) -> list[int]:
    """Loopback ports that nobody listens on, below those that connections get by themselves.

    Whoever starts again on its port must find it free: while it is down, any connection of this machine
    might have taken one of the others.
    """
    found: list[int] = []
    for port in random.SystemRandom().sample(range(21_000, 32_000), 2_000):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        found.append(port)
        if len(found) == count:
            return found
    raise BrokerFailed("no port from 21000 to 31999 is free")


def _ending_with_parent() -> list[str]:
    """A command in front that ends the broker with this process, also when that is killed."""
    found = shutil.which("setpriv")
    return [found, "--pdeathsig", "KILL"] if found else []
