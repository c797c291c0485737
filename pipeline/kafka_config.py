"""The settings that concern Kafka; fields of the one settings tree."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, SecretStr

from ..memory.errors import Misconfigured
from .outbox import OutboxRules


class KafkaFields(BaseModel):
    """Where Kafka is, as whom, and what to do where its log has lost something."""

    kafka_brokers: str | None = Field(None, description="host:port of some brokers, with commas; they name the others")
    kafka_topic: str = Field("dialogue", min_length=1, description="the topic with the dialogue")
    kafka_dead_letters: bool = Field(
        True, description="records of the topic that cannot be taken go to the topic <kafka_topic>.dead too"
    )
    kafka_updates_topic: str | None = Field(
        None, min_length=1, description="the topic that is told of every consolidated episode; default: nobody is"
    )
    max_unsent_updates: int = Field(10_000, ge=1, description="reading waits while more updates are not sent *")
    kafka_security: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="what the brokers' port speaks: SSL is TLS, SASL asks for user and password"
    )
    kafka_mechanism: Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"] = Field(
        "SCRAM-SHA-512", description="how user and password are shown, with SASL"
    )
    kafka_user: str | None = Field(None, description="who we are, with SASL")
    kafka_password: SecretStr | None = Field(None, description="the user's password; never shown")
    kafka_password_file: Path | None = Field(None, description="a file that holds the password, instead")
    kafka_ca_file: Path | None = Field(
        None, description="certificates (PEM) of the authorities to trust; default: the system's"
    )
    kafka_certificate_file: Path | None = Field(
        None, description="our own certificate (PEM), where brokers ask for one"
    )
    kafka_key_file: Path | None = Field(None, description="its private key (PEM); default: in the certificate's file")
    kafka_key_password: SecretStr | None = Field(None, description="opens the key; never shown")
    kafka_check_hostname: bool = Field(
        True, description="a broker's certificate must name the address that was dialled"
    )
    kafka_poll_records: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="records taken and embedded at a time, at most; default: 4,096 for the stub, 256 for a model *",
    )
    kafka_skip_lost: bool = Field(
        False, description="go on behind records that were removed from the log before they were read, with a warning"
    )
    kafka_accept_topic: str | None = Field(
        None, description="id of a topic to take although another one of its name was read before"
    )

    def kafka_fields(self) -> KafkaFields:
        """These settings alone, as they travel with what is read by them."""
        return KafkaFields.model_validate({name: getattr(self, name) for name in KafkaFields.model_fields})

    def poll_records_for(self, embedder: str) -> int:
        """Records to take at a time.

        A model takes seconds for what the stub does at once, and a batch is searchable when all of it is.
        """
        if self.kafka_poll_records is not None:
            return self.kafka_poll_records
        return 4096 if embedder.startswith("stub") else 256

    @property
    def outbox_rules(self) -> OutboxRules:
        """What is told to other systems.

        Raises:
            Misconfigured: something is to be sent, and no broker is named.
        """
        if self.kafka_updates_topic is not None and self.kafka_brokers is None:
            raise Misconfigured(
                f"kafka_updates_topic is {self.kafka_updates_topic}, and no Kafka broker is named: nobody would be told. "
                "Set kafka_brokers too, or leave kafka_updates_topic out"
            )
        return OutboxRules(self.kafka_dead_letters, self.kafka_updates_topic is not None)

    def kafka_secret(self) -> SecretStr | None:
        """The password, from the setting or from its file.

        Raises:
            Misconfigured: both are given, or the file cannot be read.
        """
        if self.kafka_password_file is None:
            return self.kafka_password
        if self.kafka_password is not None:
            raise Misconfigured("kafka_password and kafka_password_file are both set; leave one out")
        try:
            return SecretStr(self.kafka_password_file.read_text(encoding="utf-8").rstrip("\r\n"))
        except (OSError, UnicodeDecodeError) as error:
            raise Misconfigured(f"kafka_password_file {self.kafka_password_file} cannot be read: {error}") from None
