"""Why a Kafka broker cannot be reached: one connection by hand, step by step.

The client says "Unable to bootstrap" for a dead address, an unknown authority, a port with
or without TLS, and a wrong password alike. This dials, shakes hands, asks and says who we
are, in the order in which it can go wrong, and names the step.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Iterable

from kafka.net.sasl import get_sasl_mechanism

from ..memory.errors import RaygamError, Refused, Retryable
from .kafka_connection import KafkaConnection

_METADATA, _SASL_HANDSHAKE, _API_VERSIONS, _SASL_AUTHENTICATE = 3, 17, 18, 36
_UNSUPPORTED_MECHANISM, _ILLEGAL_SASL_STATE = 33, 34
_HOSTNAME_MISMATCH, _ADDRESS_MISMATCH, _EXPIRED = 62, 64, 10
_MAX_ANSWER_BYTES = 16 * 1024 * 1024
_AGAIN_SECONDS = 0.3


Addresses = tuple[tuple[str, int], ...]


def check_connection(connection: KafkaConnection, timeout_seconds: float = 3.0) -> Addresses:
    """Return if one of the brokers takes us as a client; else say what is in the way.

    Args:
        connection: where and as whom.
        timeout_seconds: how long each broker may take for each step.

    Returns:
        Where the cluster tells its clients to find its brokers (their `advertised.listeners`).

    Raises:
        Refused: a broker answers, but not to these settings; the message names the one to change.
        Retryable: no broker answers.
    """
    return check_addresses(connection, connection.addresses, timeout_seconds)


def check_addresses(
    connection: KafkaConnection, addresses: Iterable[tuple[str, int]], timeout_seconds: float = 3.0
) -> Addresses:
    """The same for given addresses."""
    context = connection.tls_context() if connection.tls else None
    failures: list[RaygamError] = []
    for host, port in addresses:
        probe = _Probe(connection, host, port, context, timeout_seconds)
        try:
            return probe.run()
        except _ClosedEarly:
            time.sleep(_AGAIN_SECONDS)  # a broker that was just ending is gone by then
        except (Refused, Retryable) as error:
            failures.append(error)
            continue
        try:
            return probe.run()
        except (Refused, Retryable) as error:
            failures.append(error)
    worst = next((error for error in failures if isinstance(error, Refused)), None)
    raise worst or Retryable("; ".join(map(str, failures)))


class _Closed(Exception):
    """The broker ended the connection."""


class _ClosedEarly(Refused):
    """It ended the connection without a word, which says little of why."""


class _Probe:
    def __init__(
        self, connection: KafkaConnection, host: str, port: int, context: ssl.SSLContext | None, timeout: float
    ) -> None:
        self._connection = connection
        self._host, self._port = host, port
        self._name = f"{host}:{port}"
        self._context = context
        self._timeout = timeout
        self._correlation = 0

    def run(self) -> Addresses:
        try:
            plain = socket.create_connection((self._host, self._port), self._timeout)
        except socket.gaierror as error:
            raise Retryable(
                f"the name of the Kafka broker {self._name} is not known here ({error.strerror}); check kafka_brokers"
            ) from None
        except OSError as error:
            raise Retryable(
                f"no Kafka broker answers at {self._name} ({error.strerror or 'timed out'}); "
                "is it running, and is this its address (kafka_brokers)?"
            ) from None
        with plain:
            plain.settimeout(self._timeout)
            if self._context is None:
                return self._speak(plain)
            with self._encrypted(plain, self._context) as encrypted:
                return self._speak(encrypted)

    def _encrypted(self, plain: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
        try:
            return context.wrap_socket(plain, server_hostname=self._host)
        except ssl.SSLCertVerificationError as error:
            raise self._certificate_refused(error) from None
        except (ssl.SSLError, OSError) as error:
            if isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
                raise self._own_certificate_refused(error) from None
            raise _ClosedEarly(
                f"{self._name} does not answer to TLS ({_reason(error)}): it is a port without TLS, or no Kafka broker. "
                f"Set kafka_security to {self._connection.security.replace('SSL', 'PLAINTEXT')}, "
                "or name the port with TLS in kafka_brokers"
            ) from None

    def _certificate_refused(self, error: ssl.SSLCertVerificationError) -> Refused:
        if error.verify_code in (_HOSTNAME_MISMATCH, _ADDRESS_MISMATCH):
            return Refused(
                f"the certificate of {self._name} is for another name ({error.verify_message}). Name the broker in "
                "kafka_brokers as its certificate does, or set kafka_check_hostname to false if you know who answers"
            )
        if error.verify_code == _EXPIRED:
            return Refused(f"the certificate of {self._name} has expired; the broker needs a new one")
        trusted = self._connection.ca_file or "the system's authorities"
        return Refused(
            f"the certificate of {self._name} is signed by nobody who is trusted here ({error.verify_message}; trusted: "
            f"{trusted}). Set kafka_ca_file to the certificate of the authority that signed it"
        )

    def _own_certificate_refused(self, error: ssl.SSLError) -> Refused:
        return Refused(
            f"{self._name} refuses our side of TLS ({_reason(error)}): it asks for a client certificate that it trusts. "
            "Set kafka_certificate_file and kafka_key_file, signed by an authority of the broker's"
        )

    def _speak(self, opened: socket.socket) -> Addresses:
        try:
            self._ask(opened, _API_VERSIONS, 0, b"")
        except TimeoutError:
            raise Retryable(f"{self._name} takes the connection and does not answer within {self._timeout} s") from None
        except ssl.SSLError as error:  # TLS 1.3: a client learns only now that its certificate was refused
            raise self._own_certificate_refused(error) from None
        except (_Closed, OSError):
            raise self._closed_at_once() from None
        if self._connection.sasl:
            self._authenticate(opened)
            return _brokers(self._asked(opened, _METADATA, 1, struct.pack(">i", 0)))
        try:
            return _brokers(self._ask(opened, _METADATA, 1, struct.pack(">i", 0)))
        except TimeoutError:
            raise Retryable(f"{self._name} does not answer within {self._timeout} s") from None
        except (_Closed, OSError):
            raise _ClosedEarly(
                f"{self._name} closes the connection of a client that does not say who it is: the port asks for user "
                f"and password. Set kafka_security to SASL_{'SSL' if self._connection.tls else 'PLAINTEXT'}, "
                "kafka_user and kafka_password"
            ) from None

    def _closed_at_once(self) -> RaygamError:
        if self._connection.tls:
            return Retryable(f"{self._name} closed the connection; is it a Kafka broker, and is it starting?")
        return _ClosedEarly(
            f"{self._name} closes the connection of a client without TLS: it is a port with TLS, or no Kafka broker. "
            f"Set kafka_security to {self._connection.security.replace('PLAINTEXT', 'SSL')}, or name the port without "
            "TLS in kafka_brokers"
        )

    def _authenticate(self, opened: socket.socket) -> None:
        connection = self._connection
        name = connection.mechanism
        answer = self._asked(opened, _SASL_HANDSHAKE, 1, _text(name))
        (code,) = struct.unpack_from(">h", answer)
        if code == _ILLEGAL_SASL_STATE:
            raise Refused(
                f"{self._name} asks for no user and password; set kafka_security to "
                f"{connection.security.removeprefix('SASL_')} and leave kafka_user and kafka_password out"
            )
        if code == _UNSUPPORTED_MECHANISM:
            raise Refused(
                f"{self._name} does not offer the mechanism {name}; it offers {', '.join(_texts(answer, 2)) or 'none'}. "
                "Set kafka_mechanism to one of them"
            )
        if code:
            raise Retryable(f"{self._name} answers the SASL handshake with error {code}")
        assert connection.password is not None
        mechanism = get_sasl_mechanism(name)(
            host=self._host,
            security_protocol=connection.security,
            sasl_mechanism=name,
            sasl_plain_username=connection.user,
            sasl_plain_password=connection.password.get_secret_value(),
        )
        while not mechanism.is_done():
            token = mechanism.auth_bytes()
            answer = self._asked(opened, _SASL_AUTHENTICATE, 0, struct.pack(">i", len(token)) + token)
            (code,) = struct.unpack_from(">h", answer)
            said, at = _nullable_text(answer, 2)
            if code:
                raise self._refused(said)
            (length,) = struct.unpack_from(">i", answer, at)
            try:
                mechanism.receive(answer[at + 4 : at + 4 + length])
            except (ValueError, KeyError):  # a broker that does not know the password cannot sign for it
                raise self._refused("its proof of knowing the password is wrong") from None

    def _refused(self, said: str) -> Refused:
        return Refused(
            f"{self._name} refuses the user {self._connection.user!r} or the password ({self._connection.mechanism}"
            f"{': ' + said if said else ''}). Check kafka_user, kafka_password (or kafka_password_file) and "
            "kafka_mechanism: a broker keeps users per mechanism"
        )

    def _asked(self, opened: socket.socket, api: int, version: int, body: bytes) -> bytes:
        try:
            return self._ask(opened, api, version, body)
        except TimeoutError:
            raise Retryable(f"{self._name} does not answer within {self._timeout} s") from None
        except (_Closed, OSError):
            raise Retryable(f"{self._name} closed the connection while it was asked who we are") from None

    def _ask(self, opened: socket.socket, api: int, version: int, body: bytes) -> bytes:
        """Send one request and return what follows the correlation id of its answer."""
        self._correlation += 1
        request = struct.pack(">hhi", api, version, self._correlation) + _text("raygam") + body
        opened.sendall(struct.pack(">i", len(request)) + request)
        length, correlation = struct.unpack(">ii", _exactly(opened, 8))
        if correlation != self._correlation or not 4 <= length <= _MAX_ANSWER_BYTES:
            raise _Closed  # something else than Kafka: a TLS alert, a web server
        return _exactly(opened, length - 4)


def _exactly(opened: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        part = opened.recv(min(count, 65536))
        if not part:
            raise _Closed
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack(">h", len(raw)) + raw


def _nullable_text(raw: bytes, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">h", raw, at)
    end = at + 2 + max(0, length)
    return raw[at + 2 : end].decode(errors="replace"), end


def _texts(raw: bytes, at: int) -> list[str]:
    (count,) = struct.unpack_from(">i", raw, at)
    found, at = [], at + 4
    for _ in range(count):
        value, at = _nullable_text(raw, at)
        found.append(value)
    return found


def _brokers(metadata: bytes) -> Addresses:
    """The brokers of a metadata answer, version 1."""
    (count,) = struct.unpack_from(">i", metadata)
    found, at = [], 4
    for _ in range(count):
        host, at = _nullable_text(metadata, at + 4)
        (port,) = struct.unpack_from(">i", metadata, at)
        _, at = _nullable_text(metadata, at + 4)
        found.append((host, port))
    return tuple(found)


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return error.strerror or "timed out"
