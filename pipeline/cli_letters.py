"""The commands about dead letters: `raygam dead-letters`, `dead-letters export`, `dead-letters replay`."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from ..memory.errors import Misconfigured, StateLocked
from ..memory.ports import Reader
from ..memory.writes import StoredLetter
from . import cli_read, cli_run, display, runtime
from .cli_state import State, StateToo
from .config import Settings, read_settings
from .location import AnyState
from .records import REASONS
from .replay import ReplayReport
from .replay import replay as take_up

letters = typer.Typer(
    help="List records that could not be taken, write them out to be mended, or take them up again.",
    invoke_without_command=True,
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]


@letters.callback()
def list_letters(
    context: typer.Context,
    state: StateToo = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Show at most this many.")] = 100,
    as_json: Json = False,
) -> None:
    """List records that could not be taken: reason, source position, how they begin, and whether they were replayed."""
    if context.invoked_subcommand is not None:
        if state is not None or as_json:
            raise typer.BadParameter(f"options go behind {context.invoked_subcommand!r}")
        return
    if state is None:
        raise typer.BadParameter("Missing option '--state'.")
    found = listed(state, limit)
    if as_json:
        display.print_json(found)
    else:
        display.output.print(display.dead_letters_table(display.shown(found["dead_letters"]), found["total"]))
        if found["total"] > len(found["dead_letters"]):
            display.note(f"showing {len(found['dead_letters'])} of {found['total']}; use --limit for more")


@letters.command()
def export(
    file: Annotated[Path, typer.Argument(help="Where to; one JSON object a line.")], state: State, as_json: Json = False
) -> None:
    """Write all dead letters to FILE, whole, with where they came from: to be mended, and sent again."""
    found = exported(file, state)
    if as_json:
        display.print_json(found)
    else:
        display.output.print(f"{found['exported']:,} dead letters are in {file}", highlight=False, markup=False)


@letters.command()
def replay(
    state: State,
    reason: Annotated[str | None, typer.Option("--reason", help="Only letters that were put aside for this.")] = None,
    as_json: Json = False,
) -> None:
    """Take up dead letters that are good by now: a limit was raised, a newer raygam can read them.

    They go to their owners' memories; no topic's or file's position moves. What is still bad stays.
    Run it where no engine runs. One that was broken off is finished by the next.
    """
    found = replayed(state, read_settings(), reason)
    if as_json:
        display.print_json(found)
        return
    line = f"{found['replayed']:,} dead letters were taken up: {found['accepted']:,} new turns, {found['duplicates']:,} known"
    display.output.print(line, highlight=False)
    if found["finished_before"]:
        display.note(f"{found['finished_before']:,} of them belong to a replay that was broken off before")
    if found["still_bad"]:
        reasons = ", ".join(f"{word} {count:,}" for word, count in sorted(found["still_bad"].items()))
        display.note(f"{sum(found['still_bad'].values()):,} stay as they are: {reasons}")


def listed(state: AnyState, limit: int) -> dict[str, Any]:
    """Records put aside, by partition and arrival."""
    with cli_read.opened(state) as (_, readers):
        total = sum(reader.partition_info().dead_letters for reader in readers)
        shown = (
            place
            | {
                "bytes": len(stored.letter.payload),
                "text": stored.letter.payload[:4096].decode("utf-8", "backslashreplace"),
            }
            for place, stored in _placed(readers)
        )
        return {"total": total, "dead_letters": list(islice(shown, limit))}


def exported(file: Path, state: AnyState) -> dict[str, Any]:
    """Write the letters to a file that is not there yet; it appears whole.

    Raises:
        Misconfigured: there is such a file, or it cannot be written.
    """
    if file.exists():
        raise Misconfigured(f"{file} is there already, and may have been mended; name another file")
    count = 0
    new = file.with_name(file.name + ".new")
    try:
        with cli_read.opened(state) as (_, readers), new.open("w", encoding="utf-8") as lines:
            for place, stored in _placed(readers):
                lines.write(json.dumps(place | _payload(stored.letter.payload), ensure_ascii=False) + "\n")
                count += 1
        os.replace(new, file)
    except OSError as error:
        raise Misconfigured(f"cannot write {file}: {error.strerror}; name a file that can be written") from None
    return {"exported": count, "file": str(file)}


def replayed(state: AnyState, settings: Settings, reason: str | None) -> dict[str, Any]:
    """Take the letters up and consolidate; return what was done.

    Raises:
        StateLocked: an engine has the state.
        Misconfigured: there is no state, or no such reason.
    """
    if reason is not None and reason not in REASONS:
        raise Misconfigured(f"no letter is put aside for {reason!r}; the reasons are {', '.join(REASONS)}")
    if runtime.recorded_facts(state) is None:
        raise Misconfigured(f"no state at {state}; `raygam run SOURCE --state {state}` makes one")
    try:
        engine = runtime.open_engine(state, settings)
    except StateLocked as error:
        raise StateLocked(
            f"{error}. Dead letters are replayed where no engine runs: end it (Ctrl-C, or `raygam engine stop`), replay, "
            "then start it again: it goes on from where it stood"
        ) from None
    try:
        with cli_run.progress_bar() as bar:
            task = bar.add_task("replaying", total=None, detail="")

            def advance(report: ReplayReport) -> None:
                bar.update(task, detail=f"{report.replayed:,} letters")

            report = take_up(engine, settings.record_limits, reason, advance)
        engine.drain()
    finally:
        engine.close()
    return asdict(report) | {"still_bad": dict(report.still_bad), "state": str(state)}


def _placed(readers: list[Reader]) -> Iterator[tuple[dict[str, Any], StoredLetter]]:
    """Every letter, and where it is from, by partition and arrival."""
    names: dict[str, str] = {}
    for reader in readers:
        names |= {source: held.name for source, held in reader.partition_info().positions.items() if held.name}
    for partition, reader in enumerate(readers):
        for stored in reader.letters():
            letter = stored.letter
            place = {
                "partition": partition,
                "number": stored.number,
                "source": letter.source,
                "source_name": names.get(letter.source, ""),
                "offset": letter.offset,
                "reason": letter.reason,
                "detail": letter.detail,
                "replay": stored.replay,
                "replayed": stored.replayed,
            }
            yield place, stored


def _payload(payload: bytes) -> dict[str, str]:
    try:
        return {"text": payload.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(payload).decode()}
