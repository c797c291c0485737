"""Where a state is: what is said of a directory and of a database, however it was spelt."""

from __future__ import annotations

from pathlib import Path

import pytest

from raygam import Misconfigured
from raygam.actors.spec import ClusterSpec, engine_prefix
from raygam.memory.writes import StateFacts
from raygam.pipeline.config import read_settings
from raygam.pipeline.location import located
from raygam.pipeline.runtime import locate

URL = "postgresql://anna:horse@db.example:5433/memory"


@pytest.fixture(autouse=True)
def _nothing_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGHOST", "PGPORT", "PGUSER", "PGPASSWORD", "PGDATABASE", "PGSERVICE", "PGPASSFILE", "PGSSLMODE"):
        monkeypatch.delenv(name, raising=False)


def test_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    place = locate("memory")
    assert (place.directory, str(place), place.one_node) == (Path("memory"), "memory", True)
    assert place == located(Path("memory"))
    assert place.absolute().directory == tmp_path / "memory"
    assert str(place.absolute()) == place.identity == str(tmp_path / "memory")
    assert locate(str(tmp_path / "memory")).identity == locate("./x/../memory").identity


def test_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    place = locate(URL)
    assert (place.directory, str(place)) == (None, "postgresql://anna@db.example:5433/memory")
    assert "horse" in place.address
    assert not place.one_node
    assert place.absolute() == place
    monkeypatch.setenv("PGPASSWORD", "horse")
    monkeypatch.setenv("PGPORT", "5433")
    monkeypatch.setenv("PGSSLMODE", "require")
    from_environment = locate("postgresql://anna@db.example/memory")
    assert str(from_environment) == str(place)
    assert "horse" in from_environment.address
    assert "sslmode=require" in from_environment.address
    monkeypatch.delenv("PGPASSWORD")
    assert "horse" in locate(from_environment.name.replace("anna", "anna:horse")).address


@pytest.mark.parametrize(
    "other",
    [
        "postgres://anna:horse@db.example:5433/memory",
        "postgresql://DB.example:5433/memory?user=ben",
        "postgresql:///memory?host=db.example&port=5433",
        "postgresql://anna@db.example:5433/memory?sslmode=require&connect_timeout=3",
    ],
)
def test_spellings_of_one_database_are_one_engine(other: str) -> None:
    assert engine_prefix(locate(other)) == engine_prefix(locate(URL))


@pytest.mark.parametrize(
    "other",
    [
        "postgresql://anna@db.example:5433/another",
        "postgresql://anna@db.example/memory",
        "postgresql://anna@other.example:5433/memory",
    ],
)
def test_another_database_is_another_engine(other: str) -> None:
    assert engine_prefix(locate(other)) != engine_prefix(locate(URL))


@pytest.mark.parametrize(
    ("url", "identity", "one_node"),
    [
        ("postgresql://anna@127.0.0.1/memory", "postgresql:localhost:5432/memory", True),
        ("postgresql://anna@[::1]:5432/memory", "postgresql:localhost:5432/memory", True),
        ("postgresql://anna@localhost", "postgresql:localhost:5432/anna", True),
        ("postgresql://anna@/memory?host=/run/pg", "postgresql:/run/pg:5432/memory", True),
        ("postgresql://b.example:1,A.example:2/memory", "postgresql:a.example:2,b.example:1/memory", False),
        ("postgresql://b.example,a.example:5432/memory", "postgresql:a.example:5432,b.example:5432/memory", False),
        ("postgresql://localhost,b.example/memory", "postgresql:b.example:5432,localhost:5432/memory", False),
        ("postgresql://x?service=memory&dbname=y", "postgresql:memory:x:5432/y", False),
    ],
)
def test_what_tells_a_database(url: str, identity: str, one_node: bool) -> None:
    place = locate(url)
    assert (place.identity, place.one_node) == (identity, one_node)


def test_no_password_is_in_what_may_be_shown() -> None:
    place = locate(URL)
    facts = StateFacts(8, "murmur2", "stub", 4, 1)
    spec = ClusterSpec(place, facts, read_settings(), cluster="h:1", node="", shards=1, workers=1, embedders=1)
    for shown in (repr(place), str(place), place.identity, repr(spec), f"{spec}", spec.prefix, spec.lock_name):
        assert "horse" not in shown


@pytest.mark.parametrize("state", ["mysql://anna:horse@h/x", "postgresql:/anna:horse@h/x", Path(URL)])
def test_what_is_neither_is_refused(state: str | Path) -> None:
    with pytest.raises(Misconfigured, match=r"postgresql://USER@HOST:PORT/DATABASE") as told:
        locate(state)
    assert "horse" not in str(told.value)
