"""How to reach a Kafka cluster, and as whom: settings that hold together, secrets that stay hidden."""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from ..memory.errors import Misconfigured

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")
DEFAULT_PORT = 9092
_LEAKY_LOGGERS = ("kafka.protocol.parser", "kafka.net.connection")


@dataclass(frozen=True, slots=True)
class KafkaConnection:
    """A cluster's addresses and the security of its listener.

    Attributes:
        brokers: `host:port` of some brokers, comma-separated; they name the others.
        security: one of `PROTOCOLS`.
        mechanism: one of `MECHANISMS`, with SASL.
        user: who we are, with SASL.
        password: the user's.
        ca_file: certificates (PEM) of the authorities to trust; None trusts the system's.
        certificate_file: our own certificate (PEM), where the cluster asks for one.
        key_file: its private key (PEM); None if it stands in `certificate_file`.
        key_password: opens `key_file`.
        check_hostname: whether the broker's certificate must name the address that was dialled.

    Raises:
        Misconfigured: the settings contradict each other, or a file is missing.
    """

    brokers: str
    security: str = "PLAINTEXT"
    mechanism: str = MECHANISMS[0]
    user: str | None = None
    password: SecretStr | None = None
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    key_password: SecretStr | None = None
    check_hostname: bool = True

    def __post_init__(self) -> None:
        if self.security not in PROTOCOLS:
            raise Misconfigured(f"kafka_security is {self.security!r}; choose one of {', '.join(PROTOCOLS)}")
        if not self.addresses:
            raise Misconfigured("no Kafka broker is named; give host:port, several with commas (kafka_brokers)")
        if self.sasl and self.mechanism not in MECHANISMS:
            raise Misconfigured(f"kafka_mechanism is {self.mechanism!r}; choose one of {', '.join(MECHANISMS)}")
        if self.sasl and not (self.user and self.password is not None and self.password.get_secret_value()):
            raise Misconfigured(
                f"kafka_security {self.security} needs a user and a password: set kafka_user, and kafka_password or "
                "kafka_password_file (environment: RAYGAM_KAFKA_USER, RAYGAM_KAFKA_PASSWORD)"
            )
        if not self.sasl and (self.user or self.password is not None):
            raise Misconfigured(
                f"a Kafka user or password is set, but kafka_security {self.security} never sends it; "
                "set SASL_SSL (or SASL_PLAINTEXT), or leave user and password out"
            )
        if not self.tls and (self.ca_file or self.certificate_file or self.key_file):
            raise Misconfigured(
                f"certificates for Kafka are set, but kafka_security {self.security} does not use TLS; "
                "set SSL or SASL_SSL, or leave the files out"
            )
        if self.key_file and not self.certificate_file:
            raise Misconfigured("kafka_key_file goes with kafka_certificate_file; set both, or neither")

    @property
    def tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.security in ("SSL", "SASL_SSL")

    @property
    def sasl(self) -> bool:
        """Whether we say who we are by user and password."""
        return self.security in ("SASL_PLAINTEXT", "SASL_SSL")

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """`(host, port)` of every broker that is named.

        Raises:
            Misconfigured: one of them is no address.
        """
        return tuple(_address(item.strip()) for item in self.brokers.split(",") if item.strip())

    def tls_context(self) -> ssl.SSLContext:
        """What both the probe and the client shake hands with.

        Raises:
            Misconfigured: a certificate or key cannot be read.
        """
        for setting, path in (
            ("kafka_ca_file", self.ca_file),
            ("kafka_certificate_file", self.certificate_file),
            ("kafka_key_file", self.key_file),
        ):
            if path is not None and not path.is_file():
                raise Misconfigured(f"{setting} names {path}, which is no file")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.check_hostname
        try:
            if self.ca_file is None:
                context.load_default_certs()
            else:
                context.load_verify_locations(self.ca_file)
        except (ssl.SSLError, OSError) as error:
            raise Misconfigured(f"kafka_ca_file {self.ca_file} holds no certificates in PEM form ({error})") from None
        if self.certificate_file is not None:
            # Never None: OpenSSL would ask on the terminal, and a service would wait there for ever.
            password = self.key_password.get_secret_value() if self.key_password else ""
            try:
                context.load_cert_chain(self.certificate_file, self.key_file, password)
            except (ssl.SSLError, OSError):
                raise Misconfigured(
                    f"kafka_certificate_file {self.certificate_file} and its key do not open: both must be PEM, belong "
                    "to each other, and kafka_key_password must be the key's"
                ) from None
        return context

    def client_options(self) -> dict[str, Any]:
        """Arguments for every client of kafka-python.

        They hold the password; its text form is masked, and so may be logged.
        """
        _keep_secrets_out_of_logs()
        options: dict[str, Any] = {
            "bootstrap_servers": [_joined(host, port) for host, port in self.addresses],
            "security_protocol": self.security,
            "client_id": "raygam",
            # A restarted broker is found again in seconds; the default backs off to half a minute.
            "reconnect_backoff_ms": 50,
            "reconnect_backoff_max_ms": 500,
        }
        if self.tls:
            options["ssl_context"] = self.tls_context()
        if self.sasl:
            assert self.password is not None
            options["sasl_mechanism"] = self.mechanism
            options["sasl_plain_username"] = self.user
            options["sasl_plain_password"] = _Hidden(self.password.get_secret_value())
        return options


class _Hidden(str):
    """A text that shows itself only to who encodes or joins it: clients log their settings."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'**********'"

    def __str__(self) -> str:
        return "**********"

    def __format__(self, format_spec: str) -> str:
        return "**********"


class _NoBytesSent(logging.Filter):
    """Drops debug lines: the client writes every byte that it sends there, passwords among them."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno > logging.DEBUG


_no_bytes_sent = _NoBytesSent()


def _keep_secrets_out_of_logs() -> None:
    for name in _LEAKY_LOGGERS:
        logging.getLogger(name).addFilter(_no_bytes_sent)
    client = logging.getLogger("kafka")
    if not client.handlers:
        # What concerns a person is raised as an error; without logging set up, the client's lines stay off the terminal.
        client.addHandler(logging.NullHandler())


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]") or (":" in host and not host.startswith("[")):
        host, port = text, str(DEFAULT_PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or "/" in host or not port.isdigit() or not 0 < int(port) < 65536:
        raise Misconfigured(f"{text!r} is no address of a Kafka broker; give host:port, several with commas")
    return host, int(port)


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
