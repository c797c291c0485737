"""A broker with TLS, SCRAM, PLAIN and access rules: what works, and what each wrong setting is told."""

from __future__ import annotations

import datetime
import ipaddress
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType
from pydantic import SecretStr

from benchmarks.kafka_broker import GivenBroker, KafkaBroker, free_ports, kafka_home
from raygam.adapters.kafka_cluster import KafkaCluster
from raygam.adapters.kafka_connection import KafkaConnection
from raygam.adapters.kafka_messages import MessageProducer
from raygam.adapters.kafka_source import KafkaReader
from raygam.memory.errors import Misconfigured, Retryable
from raygam.memory.writes import OutboxMessage

ALICE, BOB = "alice-s3cret", "bob-s3cret"
TOPIC = "dialogue"


class Authority:
    """Signs certificates."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._certificate = self._signed(self._name, self._key, authority=True)
        self.file = directory / f"{name}.pem"
        self.file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *, password: bytes | None = None) -> Path:
        """A key (PKCS#8) and its certificate for 127.0.0.1, in one file."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._signed(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key, authority=False)
        cipher = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        file = self._directory / f"{name}.pem"
        file.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, cipher)
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        return file

    def _signed(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, authority: bool) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if not authority:
            address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
            builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
        return builder.sign(self._key, hashes.SHA256())


class Secured(NamedTuple):
    broker: KafkaBroker
    ca_file: Path
    other_ca_file: Path
    client_file: Path
    stranger_file: Path
    lost: str

    def as_bob(self, **changes: Any) -> KafkaConnection:
        """May read."""
        return replace(
            KafkaConnection(
                self.broker.address_of("SASL_SSL"), "SASL_SSL", "PLAIN", "bob", SecretStr(BOB), ca_file=self.ca_file
            ),
            **changes,
        )

    def as_alice(self, **changes: Any) -> KafkaConnection:
        """May see the topic, not read it."""
        return self.as_bob(**{"mechanism": "SCRAM-SHA-256", "user": "alice", "password": SecretStr(ALICE)} | changes)


@pytest.fixture(scope="module")
def secured(kafka: KafkaBroker | GivenBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    home = kafka_home()
    if home is None:
        pytest.skip("a broker with security is started from KAFKA_HOME")
    directory = tmp_path_factory.mktemp("secured")
    authority, other = Authority(directory, "authority"), Authority(directory, "other")
    lost = f"127.0.0.1:{free_ports(1)[0]}"
    module = "org.apache.kafka.common.security"
    users = " ".join(f'user_{name}="{BOB}"' for name in ("bob", "cleo", "eve"))
    broker = KafkaBroker(
        home,
        directory,
        listeners={"SASL_SSL": "SASL_SSL", "SASL_PLAINTEXT": "SASL_PLAINTEXT", "SSL": "SSL", "LOST": "PLAINTEXT"},
        advertised={"LOST": lost},
        settings={
            "sasl.enabled.mechanisms": "SCRAM-SHA-256,PLAIN",
            **{
                f"listener.name.{name}.{mechanism}.sasl.jaas.config": f"{module}.{login} required{options};"
                for name in ("sasl_ssl", "sasl_plaintext")
                for mechanism, login, options in (
                    ("scram-sha-256", "scram.ScramLoginModule", ""),
                    ("plain", "plain.PlainLoginModule", f" {users}"),
                )
            },
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(authority.issue("broker")),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(authority.file),
            "listener.name.ssl.ssl.client.auth": "required",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:CN=client",
        },
        format_arguments=["--add-scram", f"SCRAM-SHA-256=[name=alice,password={ALICE}]"],
    )
    try:
        broker.start()
        _fill_and_grant(broker)
        client = authority.issue("client", password=b"opens the key")
        yield Secured(broker, authority.file, other.file, client, other.issue("stranger"), lost)
    finally:
        broker.stop()


def _fill_and_grant(broker: KafkaBroker) -> None:
    admin = KafkaAdminClient(bootstrap_servers=broker.address)
    admin.create_topics({TOPIC: {"num_partitions": 1}}, wait_for_metadata=True)

    def rule(user: str, operation: ACLOperation) -> ACL:
        topic = ResourcePattern(ResourceType.TOPIC, TOPIC)
        return ACL(f"User:{user}", "*", operation, ACLPermissionType.ALLOW, topic)

    admin.create_acls(
        [rule("bob", ACLOperation.READ), rule("alice", ACLOperation.DESCRIBE), rule("cleo", ACLOperation.READ)]
    )
    producer = KafkaProducer(bootstrap_servers=broker.address)
    producer.send(TOPIC, b"hello", partition=0)
    producer.close(timeout=10)
    admin.close()


def read_hello(connection: KafkaConnection, collect: Any) -> None:
    reader = KafkaReader(connection, TOPIC)
    try:
        reader.assign({0: None})
        assert collect(reader, lambda stands: stands == {0: 1})[0][0].records == [(0, b"hello")]
    finally:
        reader.close()


def error_of(connection: KafkaConnection, kind: type[Exception] = Misconfigured) -> str:
    with pytest.raises(kind) as caught:
        KafkaReader(connection, TOPIC)
    assert ALICE not in str(caught.value)
    assert BOB not in str(caught.value)
    return str(caught.value)


def test_plain_over_tls_reads(secured: Secured, collect: Any) -> None:
    read_hello(secured.as_bob(), collect)


def test_scram_over_tls_is_let_in(secured: Secured) -> None:
    with KafkaCluster(secured.as_alice()) as cluster:
        assert not cluster.topic(TOPIC).readable


def test_a_client_certificate_reads(secured: Secured, collect: Any) -> None:
    connection = KafkaConnection(
        secured.broker.address_of("SSL"),
        "SSL",
        ca_file=secured.ca_file,
        certificate_file=secured.client_file,
        key_password=SecretStr("opens the key"),
    )
    read_hello(connection, collect)


def test_a_missing_or_unknown_client_certificate_is_told(secured: Secured) -> None:
    connection = KafkaConnection(secured.broker.address_of("SSL"), "SSL", ca_file=secured.ca_file)
    assert "asks for a client certificate that it trusts. Set kafka_certificate_file" in error_of(connection)
    stranger = replace(connection, certificate_file=secured.stranger_file)
    assert "asks for a client certificate that it trusts" in error_of(stranger)


def test_a_key_that_does_not_open_is_told(secured: Secured) -> None:
    connection = KafkaConnection(
        secured.broker.address_of("SSL"),
        "SSL",
        ca_file=secured.ca_file,
        certificate_file=secured.client_file,
        key_password=SecretStr("does not open"),
    )
    said = error_of(connection)
    assert "kafka_key_password must be the key's" in said
    assert "does not open" not in said.replace("do not open", "")
    assert "kafka_key_password" in error_of(replace(connection, key_password=None))


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_wrong_password_is_told(secured: Secured, mechanism: str) -> None:
    connection = secured.as_bob() if mechanism == "PLAIN" else secured.as_alice()
    said = error_of(replace(connection, password=SecretStr("wr0ng-password")))
    assert f"refuses the user {connection.user!r} or the password ({mechanism}" in said
    assert "kafka_password" in said
    assert "wr0ng-password" not in said


def test_an_unknown_user_is_told(secured: Secured) -> None:
    assert "refuses the user 'nobody' or the password" in error_of(secured.as_alice(user="nobody"))


def test_a_mechanism_that_is_not_enabled_is_told(secured: Secured) -> None:
    said = error_of(secured.as_alice(mechanism="SCRAM-SHA-512"))
    assert "does not offer the mechanism SCRAM-SHA-512; it offers" in said
    assert "SCRAM-SHA-256" in said
    assert "PLAIN" in said


def test_an_unknown_authority_is_told(secured: Secured) -> None:
    assert "signed by nobody who is trusted here" in error_of(secured.as_bob(ca_file=secured.other_ca_file))
    assert "Set kafka_ca_file" in error_of(secured.as_bob(ca_file=None))


def test_a_certificate_for_another_name_is_told(secured: Secured, collect: Any) -> None:
    port = secured.broker.address_of("SASL_SSL").partition(":")[2]
    connection = secured.as_bob(brokers=f"localhost:{port}")
    assert f"certificate of localhost:{port} is for another name" in error_of(connection)
    read_hello(replace(connection, check_hostname=False), collect)


def test_plaintext_to_a_port_with_tls_is_told(secured: Secured) -> None:
    connection = KafkaConnection(secured.broker.address_of("SSL"))
    assert "client without TLS: it is a port with TLS" in error_of(connection)
    connection = secured.as_bob(security="SASL_PLAINTEXT", ca_file=None)
    assert "Set kafka_security to SASL_SSL" in error_of(connection)


def test_tls_to_a_port_without_is_told(secured: Secured) -> None:
    said = error_of(KafkaConnection(secured.broker.address, "SSL", ca_file=secured.ca_file))
    assert "does not answer to TLS" in said
    assert "Set kafka_security to PLAINTEXT" in said


def test_no_user_where_one_is_asked_for_is_told(secured: Secured) -> None:
    said = error_of(KafkaConnection(secured.broker.address_of("SASL_PLAINTEXT")))
    assert "does not say who it is" in said
    assert "Set kafka_security to SASL_PLAINTEXT" in said
    said = error_of(KafkaConnection(secured.broker.address_of("SASL_SSL"), "SSL", ca_file=secured.ca_file))
    assert "Set kafka_security to SASL_SSL" in said


def test_a_user_where_none_is_asked_for_is_told(secured: Secured) -> None:
    connection = secured.as_bob(brokers=secured.broker.address, security="SASL_PLAINTEXT", ca_file=None)
    assert "asks for no user and password; set kafka_security to PLAINTEXT" in error_of(connection)


def test_a_missing_right_to_read_is_told(secured: Secured) -> None:
    for connection in (secured.as_alice(), secured.as_bob(user="eve")):  # who may see the topic, and who may not
        said = error_of(connection)
        assert f"the Kafka user '{connection.user}' has no right to read topic {TOPIC}" in said
        assert f"--allow-principal User:{connection.user} --topic {TOPIC}" in said


def test_a_right_that_is_taken_away_while_reading_is_told(secured: Secured, collect: Any) -> None:
    reader = KafkaReader(secured.as_bob(user="cleo"), TOPIC)
    admin = KafkaAdminClient(bootstrap_servers=secured.broker.address)
    try:
        reader.assign({0: None})
        topic = ResourcePattern(ResourceType.TOPIC, TOPIC)
        admin.delete_acls([ACL("User:cleo", "*", ACLOperation.READ, ACLPermissionType.ALLOW, topic)])
        said = ""
        for _ in range(100):
            try:
                reader.poll(0.1)
            except Misconfigured as error:
                said = str(error)
                break
        assert "user 'cleo' has no right to read" in said
        assert reader.positions[0].next_offset in (0, 1)
    finally:
        admin.close()
        reader.close()


def test_a_missing_right_to_write_is_told(secured: Secured) -> None:
    """Bob may read the topic, and not tell of what he found in it."""
    sink = MessageProducer(secured.as_bob(), TOPIC)
    try:
        delivered, error = sink.deliver([OutboxMessage("update", "a", b"k", (("id", "a"),), b"{}")])
    finally:
        sink.close()
    assert delivered == 0
    assert isinstance(error, Misconfigured)
    assert f"the Kafka user 'bob' has no right to write topic {TOPIC}" in str(error)
    assert "--operation Write" in str(error)


def test_a_missing_right_to_make_a_topic_is_told(secured: Secured) -> None:
    with (
        KafkaCluster(secured.as_bob()) as cluster,
        pytest.raises(Misconfigured, match=r"user 'bob' has no right to make topic another.*--operation Create"),
    ):
        cluster.create("another", 1)


def test_brokers_that_name_themselves_wrongly_are_found_out(secured: Secured) -> None:
    said = error_of(KafkaConnection(secured.broker.address_of("LOST")), Retryable)
    assert f"tells its clients to go on at {secured.lost} (the brokers' advertised.listeners)" in said


def test_no_secret_is_logged_or_shown(
    secured: Secured, collect: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        read_hello(secured.as_bob(), collect)
        error_of(secured.as_alice())
    shown = [repr(secured.as_bob()), str(secured.as_bob()), repr(secured.as_bob().client_options())]
    logged = [record.getMessage() for record in caplog.records]
    assert any(record.name.startswith("kafka") and record.levelno == logging.DEBUG for record in caplog.records)
    for line in shown + logged:
        assert ALICE not in line
        assert BOB not in line
