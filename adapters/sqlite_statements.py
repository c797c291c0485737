"""The ledger's statements and queries as SQLite runs them."""

from __future__ import annotations

from .queries import Queries
from .schema import event_relation
from .sqlite_dialect import SQLITE
from .statements import Statements

STATEMENTS = Statements(SQLITE)
QUERIES = Queries(SQLITE)
RELATIONS_TOGETHER = 100
INSERT_EVENT_RELATIONS = SQLITE.insert_together(event_relation, RELATIONS_TOGETHER)
