"""The commands about Kafka: `raygam produce`, `raygam topics create | show`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from . import display
from .cli import EXIT_FAILED, EXIT_INTERRUPTED
from .config import Settings, read_settings

topics = typer.Typer(help="Make a Kafka topic for dialogue, or look at one.", no_args_is_help=True)

Brokers = Annotated[
    str | None, typer.Option("--kafka", help="host:port of some brokers, with commas; default: kafka_brokers.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]


def produce(
    source: Annotated[Path, typer.Argument(help="A file with one JSON object a line.")],
    kafka: Brokers = None,
    topic: Annotated[str | None, typer.Option("--topic", help="The topic; default: kafka_topic.")] = None,
    partitioner: Annotated[
        Literal["murmur2", "crc32"] | None, typer.Option("--partitioner", help="As the state's; default: murmur2.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Send SOURCE into a Kafka topic, keyed by user, for the engine to read.

    Every record is acknowledged by all replicas. A second run sends all of it again, which changes no memory.
    """
    from . import cli_kafka  # the client takes half a second to load

    settings = read_settings(kafka_brokers=kafka, kafka_topic=topic, partitioner=partitioner)
    report = cli_kafka.produce(source, settings, quiet=as_json)
    if as_json:
        display.print_json(report)
    if report["interrupted"]:
        raise typer.Exit(EXIT_INTERRUPTED)
    if report["too_large"]:
        raise typer.Exit(EXIT_FAILED)


@topics.command()
def create(
    name: Annotated[str, typer.Argument(help="The topic.")],
    kafka: Brokers = None,
    partitions: Annotated[
        int | None, typer.Option("--partitions", min=1, max=4096, help="As the state's; default: the setting.")
    ] = None,
    replication: Annotated[
        int | None, typer.Option("--replication", min=1, max=32767, help="Copies of each; default: the cluster's.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make topic NAME, and NAME.dead beside it for records that cannot be taken.

    Its number of partitions stays: users are spread over them by their keys.
    """
    from . import cli_kafka

    settings = _settings(name, kafka)
    found = cli_kafka.create_topic(settings, partitions or settings.partitions, replication)
    if as_json:
        display.print_json(found)
    else:
        display.output.print(
            f"topic {found['name']}, id {found['topic_id']}: {found['partitions']} partitions, "
            f"replication {found['replicas']}"
            + (f"; dead letters go to {found['dead_letters']['name']}" if "dead_letters" in found else ""),
            highlight=False,
            markup=False,
        )


@topics.command()
def show(name: Annotated[str, typer.Argument(help="The topic.")], kafka: Brokers = None, as_json: Json = False) -> None:
    """Show a topic: its id, partitions, and the offsets that its log holds."""
    from . import cli_kafka

    found = cli_kafka.show_topic(_settings(name, kafka))
    if as_json:
        display.print_json(found)
    else:
        display.output.print(cli_kafka.topic_view(found))


def _settings(topic: str, brokers: str | None) -> Settings:
    return read_settings(kafka_brokers=brokers, kafka_topic=topic)
