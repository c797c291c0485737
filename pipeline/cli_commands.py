"""The commands: `raygam run | serve | search | answer | show | dead-letters | reconsolidate | doctor`.

With `--json` standard output is one object and everything else goes to standard error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..memory.errors import Misconfigured
from ..memory.model import DEFAULT_TENANT
from . import (
    cli_answer,
    cli_engine,
    cli_letters,
    cli_partitions,
    cli_read,
    cli_reconsolidate,
    cli_run,
    cli_tasks,
    cli_topics,
    display,
)
from .cli import EXIT_INTERRUPTED
from .cli_state import State, StateToo
from .config import read_settings

app = typer.Typer(
    name="raygam",
    help="A long-term memory for every user of a chat product or an agent fleet.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.add_typer(cli_engine.app, name="engine")
app.add_typer(cli_letters.letters, name="dead-letters")
app.add_typer(cli_tasks.tasks, name="tasks")
app.add_typer(cli_topics.topics, name="topics")
app.command()(cli_topics.produce)
app.command()(cli_reconsolidate.reconsolidate)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
Tenant = Annotated[str, typer.Option("--tenant", help="The tenant of the user.")]
EmbedderName = Annotated[
    str | None,
    typer.Option("--embedder", help="minilm or stub; default: what the state was made with, else minilm."),
]


@app.command()
def run(
    state: State,
    source: Annotated[
        Path | None, typer.Argument(help="A file with one JSON object a line; or none, to follow a Kafka topic.")
    ] = None,
    kafka: Annotated[
        str | None,
        typer.Option("--kafka", help="Follow a topic: host:port of some brokers, with commas; default: kafka_brokers."),
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", help="The topic; default: kafka_topic.")] = None,
    to_the_end: Annotated[
        bool, typer.Option("--to-the-end", help="Take a topic as a file: stop where it ends now, and consolidate all.")
    ] = False,
    embedder: EmbedderName = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=0, help="Threads of the slow path; with --ray, its actors.")
    ] = None,
    on_ray: Annotated[bool, typer.Option("--ray", help="Spread the work over Ray actors.")] = False,
    shards: Annotated[int | None, typer.Option("--shards", min=1, help="Shard actors (with --ray).")] = None,
    address: Annotated[
        str | None,
        typer.Option("--address", help="A running Ray cluster (with --ray), `auto` to find it; default: start one."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Stream SOURCE, or a Kafka topic, into the state, from where it was left, and consolidate it.

    A file ends; a topic is followed until Ctrl-C or SIGTERM. Both stop at the edge of a batch, and the same
    command goes on from there.
    """
    settings = read_settings(embedder=embedder, workers=workers, kafka_brokers=kafka, kafka_topic=topic)
    if source is not None and (kafka or topic or to_the_end):
        raise Misconfigured(
            "a run takes a file, or follows a topic: leave out SOURCE, or --kafka, --topic, --to-the-end"
        )
    if source is None and settings.kafka_brokers is None:
        raise Misconfigured("nothing to take: name a file, or a broker (--kafka host:port, setting kafka_brokers)")
    if not on_ray and (shards is not None or address is not None):
        raise Misconfigured("--shards and --address go with --ray; add it, or leave them out")
    if on_ray:
        from . import cli_ray  # Ray takes a second to load

        if source is not None:
            report = cli_ray.run(
                source, state, settings, shards=shards, workers=workers, address=address, quiet=as_json
            )
        else:
            report = cli_ray.follow_topic(
                state, settings, to_the_end=to_the_end, shards=shards, workers=workers, address=address, quiet=as_json
            )
    elif source is not None:
        report = cli_run.run(source, state, settings, quiet=as_json)
    else:
        from . import cli_stream  # so does the client of Kafka

        report = cli_stream.run(state, settings, to_the_end=to_the_end, quiet=as_json)
    if as_json:
        display.print_json(report)
    if report["interrupted"]:
        raise typer.Exit(EXIT_INTERRUPTED)


@app.command()
def serve(
    state: State,
    host: Annotated[str, typer.Option("--host", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Where to listen; 0 picks a free one.")] = 8000,
    embedder: EmbedderName = None,
    shards: Annotated[int | None, typer.Option("--shards", min=1, help="Shard actors.")] = None,
    workers: Annotated[int | None, typer.Option("--workers", min=0, help="Worker actors of the slow path.")] = None,
    address: Annotated[
        str | None, typer.Option("--address", help="A running Ray cluster, `auto` to find it; default: start one.")
    ] = None,
    kafka: Annotated[
        str | None, typer.Option("--kafka", help="Follow a topic too: host:port of brokers; default: kafka_brokers.")
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Follow this topic too; default: kafka_topic.")] = None,
    as_json: Json = False,
) -> None:
    """Serve the state over HTTP, until Ctrl-C or SIGTERM; with --kafka or --topic, and follow a topic into it."""
    from . import cli_serve  # Ray takes a second to load

    def ready(found: dict[str, Any]) -> None:
        if as_json:
            display.print_json(found)
        else:
            display.output.print(f"serving {state} at {found['url']}; Ctrl-C stops", markup=False, highlight=False)

    settings = read_settings(embedder=embedder, workers=workers, kafka_brokers=kafka, kafka_topic=topic)
    cli_serve.serve(
        state,
        settings,
        host=host,
        port=port,
        shards=shards,
        workers=workers,
        address=address,
        follows=kafka is not None or topic is not None,
        on_ready=ready,
    )


@app.command()
def search(
    user: Annotated[str, typer.Argument(help="The user whose memory is asked.")],
    query: Annotated[str, typer.Argument(help="What is asked.")],
    state: State,
    k: Annotated[int, typer.Option("-k", "--k", min=1, max=1000, help="How many memories.")] = 10,
    mode: Annotated[str, typer.Option("--mode", help="gam or flat.")] = "gam",
    tenant: Tenant = DEFAULT_TENANT,
    as_of: Annotated[str | None, typer.Option("--as-of", help="Only what was said by this time (ISO 8601).")] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show the path that led to each memory.")] = False,
    embedder: EmbedderName = None,
    as_json: Json = False,
) -> None:
    """Ask a user's memory; also while a run writes."""
    answer = cli_read.search(state, read_settings(embedder=embedder), tenant, user, query, k=k, mode=mode, as_of=as_of)
    if as_json:
        display.print_json(answer)
        return
    if not answer["known_user"]:
        display.note(f"nothing is known of user {user} of tenant {tenant} in {state}")
    display.output.print(display.memories_view(display.shown(answer), explain=explain))


@app.command()
def answer(
    user: Annotated[str, typer.Argument(help="The user whose memory is asked.")],
    question: Annotated[str, typer.Argument(help="What is asked.")],
    state: State,
    k: Annotated[int, typer.Option("-k", "--k", min=1, max=1000, help="How many memories to answer from.")] = 10,
    mode: Annotated[str, typer.Option("--mode", help="gam or flat.")] = "gam",
    tenant: Tenant = DEFAULT_TENANT,
    as_of: Annotated[
        str | None, typer.Option("--as-of", help="Answer from what was said by this time, as of it (ISO 8601).")
    ] = None,
    chat_url: Annotated[
        str | None,
        typer.Option("--chat-url", help="An OpenAI-compatible endpoint, with its /v1; default: setting chat_url."),
    ] = None,
    chat_model: Annotated[
        str | None,
        typer.Option("--chat-model", help="The model's name there; default: setting chat_model, else its only one."),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", min=0.1, help="How long the model may take; default: chat_timeout_seconds."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            "--address", help="The Ray cluster of an engine that runs, `auto` to find it: its chat model is asked."
        ),
    ] = None,
    embedder: EmbedderName = None,
    as_json: Json = False,
) -> None:
    """Have a chat model answer a question from a user's memory, with citations; also while a run writes."""
    if address is not None and (chat_url or chat_model):
        raise Misconfigured(
            "--chat-url and --chat-model name a chat model, and --address the engine whose chat model is asked: leave one "
            "of them out"
        )
    settings = read_settings(embedder=embedder, chat_url=chat_url, chat_model=chat_model)
    given = cli_answer.answer(
        state, settings, tenant, user, question, k=k, mode=mode, as_of=as_of, seconds=seconds, address=address
    )
    if as_json:
        display.print_json(given)
        return
    if not given["known_user"]:
        display.note(f"nothing is known of user {user} of tenant {tenant} in {state}")
    display.output.print(cli_answer.answer_view(display.shown(given)))


@app.command()
def show(
    user: Annotated[str, typer.Argument(help="The user whose memory is shown.")],
    state: State,
    tenant: Tenant = DEFAULT_TENANT,
    as_json: Json = False,
) -> None:
    """Show a user's topics, relations, episodes with the reason of each cut, and live buffers."""
    document = cli_read.show(state, tenant, user)
    if as_json:
        display.print_json(document)
    else:
        display.output.print(display.user_view(display.shown(document)))


@app.command()
def partitions(
    state: State,
    kafka: Annotated[
        str | None, typer.Option("--kafka", help="Compare with a topic: host:port of brokers; default: kafka_brokers.")
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", help="The topic; default: kafka_topic.")] = None,
    as_json: Json = False,
) -> None:
    """Show every partition: epoch, who opened it last, source positions, users, tasks; with Kafka also its lag."""
    found = cli_partitions.partitions(state, read_settings(kafka_brokers=kafka, kafka_topic=topic))
    if as_json:
        display.print_json(found)
    else:
        display.output.print(cli_partitions.partitions_view(display.shown(found)))


@app.command()
def doctor(
    state: StateToo = None,
    settings: Annotated[bool, typer.Option("--settings", help="List every setting with its value.")] = False,
    as_json: Json = False,
) -> None:
    """Say what is here: versions, models at hand, devices, what stands in for what."""
    found = cli_read.doctor(read_settings(), state, with_settings=settings)
    if as_json:
        display.print_json(found)
    else:
        display.output.print(display.doctor_view(found))
