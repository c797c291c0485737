"""The ledger's statements and queries as PostgreSQL runs them."""

from __future__ import annotations

from .postgres_dialect import POSTGRES
from .queries import Queries
from .statements import Statements

STATEMENTS = Statements(POSTGRES)
QUERIES = Queries(POSTGRES)
