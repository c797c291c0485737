"""Settings of Kafka: what contradicts itself is refused, and secrets show nowhere."""

from __future__ import annotations

import json
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from raygam.actors.progress import Progress
from raygam.adapters.kafka_connection import KafkaConnection
from raygam.memory.errors import Misconfigured
from raygam.pipeline import cli_engine, kafka_runtime
from raygam.pipeline.config import Settings, read_settings
from raygam.pipeline.jobs import TopicJob

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "kafka.md").read_text(encoding="utf-8")
SECRET = "hunter2-s3cret"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", sorted(name for name in Settings.model_fields if name.startswith("kafka_")))
def test_every_setting_is_in_the_page(name: str) -> None:
    assert f"| `{name}` |" in PAGE


@pytest.mark.parametrize(
    ("brokers", "expected"),
    [
        ("localhost", (("localhost", 9092),)),
        ("a:1, b.example:65535,", (("a", 1), ("b.example", 65535))),
        ("[::1]:9093", (("::1", 9093),)),
        ("::1", (("::1", 9092),)),
        ("[fe80::1]", (("fe80::1", 9092),)),
    ],
)
def test_addresses_are_read(brokers: str, expected: tuple[tuple[str, int], ...]) -> None:
    assert KafkaConnection(brokers).addresses == expected


@pytest.mark.parametrize("brokers", ["", " , ", "a:0", "a:70000", "a:b", "kafka://a:9092", ":9092"])
def test_what_is_no_address_is_refused(brokers: str) -> None:
    with pytest.raises(Misconfigured, match="host:port"):
        KafkaConnection(brokers)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"security": "TLS"}, "choose one of PLAINTEXT, SSL"),
        ({"security": "SASL_SSL"}, "needs a user and a password"),
        ({"security": "SASL_SSL", "user": "ann", "password": SecretStr("")}, "needs a user and a password"),
        (
            {"security": "SASL_SSL", "user": "ann", "password": SecretStr(SECRET), "mechanism": "GSSAPI"},
            "choose one of SCRAM-SHA-512",
        ),
        ({"user": "ann", "password": SecretStr(SECRET)}, "PLAINTEXT never sends it"),
        ({"ca_file": Path("ca.pem")}, "does not use TLS"),
        ({"security": "SSL", "key_file": Path("key.pem")}, "goes with kafka_certificate_file"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(Misconfigured, match=said) as caught:
        KafkaConnection("localhost", **options)
    assert SECRET not in str(caught.value)


def test_a_missing_or_wrong_certificate_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"kafka_ca_file names .*nowhere\.pem, which is no file"):
        KafkaConnection("localhost", "SSL", ca_file=tmp_path / "nowhere.pem").tls_context()
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    with pytest.raises(Misconfigured, match="holds no certificates in PEM form"):
        KafkaConnection("localhost", "SSL", ca_file=wrong).tls_context()


def test_the_password_comes_from_the_environment_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYGAM_KAFKA_USER", "ann")
    monkeypatch.setenv("RAYGAM_KAFKA_SECURITY", "SASL_SSL")
    file = tmp_path / "password"
    file.write_text(SECRET + "\n")
    monkeypatch.setenv("RAYGAM_KAFKA_PASSWORD_FILE", str(file))
    from_file = kafka_runtime.connection(read_settings(kafka_brokers="localhost"))
    monkeypatch.setenv("RAYGAM_KAFKA_PASSWORD", SECRET)
    with pytest.raises(Misconfigured, match="both set"):
        kafka_runtime.connection(read_settings(kafka_brokers="localhost"))
    monkeypatch.delenv("RAYGAM_KAFKA_PASSWORD_FILE")
    assert kafka_runtime.connection(read_settings(kafka_brokers="localhost")) == from_file
    assert from_file.password is not None
    assert from_file.password.get_secret_value() == SECRET
    monkeypatch.delenv("RAYGAM_KAFKA_PASSWORD")
    monkeypatch.setenv("RAYGAM_KAFKA_PASSWORD_FILE", str(tmp_path / "nowhere"))
    with pytest.raises(Misconfigured, match=r"kafka_password_file .*nowhere cannot be read"):
        kafka_runtime.connection(read_settings(kafka_brokers="localhost"))


def test_no_broker_is_told() -> None:
    with pytest.raises(Misconfigured, match="give --kafka host:port, or set kafka_brokers"):
        kafka_runtime.connection(read_settings())


def test_secrets_show_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYGAM_KAFKA_USER", "ann")
    monkeypatch.setenv("RAYGAM_KAFKA_PASSWORD", SECRET)
    monkeypatch.setenv("RAYGAM_KAFKA_SECURITY", "SASL_SSL")
    settings = read_settings(kafka_brokers="localhost")
    connection = kafka_runtime.connection(settings)
    options = connection.client_options()
    assert options["sasl_plain_password"].encode() == SECRET.encode()
    shown = [repr(settings), str(settings.model_dump()), repr(connection), str(connection)]
    shown += [repr(options), str(options), f"{options['sasl_plain_password']}"]
    assert not [text for text in shown if SECRET in text]
    assert pickle.loads(pickle.dumps(connection)) == connection


@pytest.mark.parametrize("line", [f'kafka_pasword = "{SECRET}"', f'kafka_password = ["{SECRET}"]'])
def test_a_secret_in_the_wrong_place_is_not_shown_either(line: str, tmp_path: Path) -> None:
    (tmp_path / "raygam.toml").write_text(line + "\n")
    with pytest.raises(Misconfigured, match=r"kafka_pass?word") as caught:
        read_settings()
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("logger", ["kafka.protocol.parser", "kafka.net.connection"])
def test_what_the_client_sends_is_not_logged(logger: str, caplog: pytest.LogCaptureFixture) -> None:
    KafkaConnection("localhost").client_options()
    with caplog.at_level(logging.DEBUG, logger):
        logging.getLogger(logger).debug("Send: %r", SECRET)
        logging.getLogger(logger).info("Connected")
    assert [record.getMessage() for record in caplog.records] == ["Connected"]


def test_an_engine_shows_what_it_follows_and_no_password() -> None:
    given = read_settings(
        kafka_brokers="localhost:9092", kafka_security="SASL_SSL", kafka_user="u", kafka_password="s3cret"
    )
    progress = Progress(TopicJob(given.kafka_fields(), "kafka:an-id", 256), 8, offset=7, size=9)
    shown = cli_engine._document(progress)
    assert shown["job"] == {"name": "topic dialogue", "source": "kafka:an-id", "unit": "records"}
    assert "s3cret" not in json.dumps(shown) + repr(progress)
