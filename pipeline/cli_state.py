"""The option `--state`, as every command has it."""

from __future__ import annotations

from typing import Annotated

import typer

from . import runtime
from .location import StateLocation

_FORM = "DIRECTORY|postgresql://…"

State = Annotated[
    StateLocation,
    typer.Option(
        "--state",
        parser=runtime.locate,
        metavar=_FORM,
        help="The state: a directory, or a database, postgresql://USER@HOST:PORT/DATABASE.",
        show_default=False,
    ),
]
StateToo = Annotated[
    StateLocation | None,
    typer.Option("--state", parser=runtime.locate, metavar=_FORM, help="A state to look at too."),
]
