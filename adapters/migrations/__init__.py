"""Brings a ledger's tables to the form of `schema.py`, by Alembic, from inside the package."""

from __future__ import annotations

import threading
from pathlib import Path

from sqlalchemy import Connection

_ONE_AT_A_TIME = threading.Lock()  # Alembic keeps its context in a module


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Migrate to `revision` inside the transaction that the caller has begun and will commit."""
    from alembic import command  # 0.2 s that an opening without migration does not pay
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    with _ONE_AT_A_TIME:
        command.upgrade(config, revision)
