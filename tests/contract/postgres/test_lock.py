"""One engine has a state in a database, whoever dies."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest

from raygam.adapters import postgres_lock
from raygam.adapters.postgres_store import PostgresStore
from raygam.memory.errors import Retryable, StateLocked
from tests.contract.postgres.database import ANNA, FACTS, end_sessions, turns

MEMBER = """
import sys
from raygam.adapters.postgres_connection import Server
from raygam.adapters.postgres_lock import PostgresLock
server = Server.of(sys.argv[1])
lock = PostgresLock.join(server, sys.argv[2]) if len(sys.argv) > 2 else PostgresLock.acquire(server)
print("held", flush=True)
sys.stdin.read()
"""


def member(url: str, *cluster: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", MEMBER, url, *cluster]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def ways_to_write(url: str) -> list[Callable[[], PostgresStore]]:
    return [lambda: PostgresStore.create_or_open(url, FACTS), lambda: PostgresStore.join(url, FACTS, "another cluster")]


def test_a_second_engine_is_told_who_holds_the_state_and_a_kill_frees_it(url: str) -> None:
    process = member(url)
    try:
        for take in ways_to_write(url):
            with pytest.raises(StateLocked, match=rf"process {process.pid} on {socket.gethostname()}, since 20"):
                take()
        with PostgresStore.open_read_only(url) as reading:
            assert len(reading.reader(0).events(ANNA)) == 1
    finally:
        end(process)
    PostgresStore.create_or_open(url, FACTS).close()


def test_processes_of_one_cluster_share_the_lock(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_lock, "_JOIN_SECONDS", 0.2)
    monkeypatch.setattr(postgres_lock, "_ENDING_SECONDS", 0.2)
    first = member(url, "127.0.0.1:1")
    try:
        with PostgresStore.join(url, FACTS, "127.0.0.1:1") as store:
            end(first)  # the one that wrote the name
            store.writer(0).commit(turns(2))
            for take in ways_to_write(url):
                with pytest.raises(StateLocked, match=r"the Ray cluster at 127\.0\.0\.1:1, first by process"):
                    take()
            PostgresStore.join(url, FACTS, "127.0.0.1:1").close()
    finally:
        end(first)
    PostgresStore.create_or_open(url, FACTS).close()


def test_a_lock_that_was_lost_and_taken_by_another_is_not_taken_back(url: str, store: PostgresStore) -> None:
    writer = store.writer(0)
    end_sessions(url, "raygam engine")
    process = member(url)
    try:
        end_sessions(url, "raygam partition 0")
        with pytest.raises(Retryable):
            writer.commit(turns(2))
        with pytest.raises(StateLocked, match=f"process {process.pid}"):
            writer.commit(turns(2))
        with pytest.raises(StateLocked):
            store.writer(1)
    finally:
        end(process)
    writer.commit(turns(2))


def test_a_forked_child_does_not_keep_the_lock_of_a_dead_parent(url: str) -> None:
    source = f"""
import os, sys
from raygam.adapters.postgres_connection import Server
from raygam.adapters.postgres_lock import PostgresLock
lock = PostgresLock.acquire(Server.of({url!r}))
if os.fork() == 0:
    print(os.getpid(), flush=True)
    sys.stdin.read()
    os._exit(0)
os.wait()
"""
    process = subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    child = int(process.stdout.readline())
    try:
        process.kill()
        PostgresStore.create_or_open(url, FACTS).close()
        os.kill(child, 0)  # it is still there
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait()
