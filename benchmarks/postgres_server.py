"""A PostgreSQL server of one's own, for tests and benchmarks: made by `initdb`, gone when it is closed."""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlencode

import psutil
import psycopg
from psycopg import conninfo, sql

from benchmarks.kafka_broker import free_ports

_DEBIAN = Path("/usr/lib/postgresql")
_START_SECONDS = 30.0
_SETTINGS = {
    "shared_buffers": "64MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_connections": "100",
    "log_min_messages": "fatal",
    "lc_messages": "C",
}
_ACCESS = """
host all,postgres secretive 127.0.0.1/32 scram-sha-256
local all all trust
host all all 127.0.0.1/32 trust
"""
"""Who may connect: everybody from this machine; `secretive` with a password."""


def find_binaries() -> Path | None:
    """The folder with `initdb` and `postgres`: on PATH, or where Debian puts the newest; None without any."""
    onpath = shutil.which("initdb")
    found = [Path(onpath).resolve().parent] if onpath else []
    found += sorted(_DEBIAN.glob("*/bin"), key=lambda path: [int(part) for part in path.parent.name.split(".")])[::-1]
    return next((folder for folder in found if (folder / "initdb").exists() and (folder / "postgres").exists()), None)


class GivenServer:
    """A server that somebody else runs.

    Args:
        url: of a database from which others can be made.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._numbers = itertools.count()
        self._made: list[str] = []

    def database(self, like: str = "") -> str:
        """Make a database, empty or like the one of a URL that nobody is connected to, and return its URL."""
        name = f"raygam_{os.getpid()}_{next(self._numbers)}"
        with psycopg.connect(self.url, autocommit=True) as connection:
            template = conninfo.conninfo_to_dict(like)["dbname"] if like else "template0"
            made = sql.SQL("CREATE DATABASE {} TEMPLATE {} ENCODING 'UTF8'")
            connection.execute(made.format(sql.Identifier(name), sql.Identifier(str(template))))
        self._made.append(name)
        others = conninfo.conninfo_to_dict(self.url)
        others.pop("dbname", None)
        return f"postgresql:///{name}?{urlencode(others)}"

    def close(self) -> None:
        """Drop the databases that were made."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            for name in self._made:
                connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class PostgresServer(GivenServer):
    """A server in a temporary directory, on a free port of the loopback interface; durable as a real one is.

    It runs as another user where this process is root, since PostgreSQL refuses that.

    Args:
        binaries: the folder with `initdb` and `postgres`.
    """

    def __init__(self, binaries: Path) -> None:
        self._binaries = binaries
        self._folder = Path(tempfile.mkdtemp(prefix="raygam-postgres-"))
        self._user = _unprivileged()
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_ports(1)[0]
        super().__init__(f"postgresql://raygam@127.0.0.1:{self.port}/postgres")
        try:
            self._make()
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Start it, also after a kill, and wait until it answers."""
        settings = [f"--{name}={value}" for name, value in _SETTINGS.items()]
        with (self._folder / "log").open("ab") as log:
            self._process = self._popen(
                *("postgres", "-D", str(self._folder / "data"), "-p", str(self.port)),
                *("-k", str(self._folder), "-h", "127.0.0.1", *settings),
                output=log.fileno(),
            )
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                psycopg.connect(self.url).close()
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    log_text = (self._folder / "log").read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"PostgreSQL did not start: {log_text}") from None
                time.sleep(0.02)
            else:
                return

    def kill(self) -> None:
        """SIGKILL to every process of it, as a power cut would."""
        assert self._process is not None
        postmaster = psutil.Process(self._process.pid)
        processes = [postmaster, *postmaster.children(recursive=True)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        psutil.wait_procs(processes, timeout=10)

    def stop(self) -> None:
        """Shut it down, ending all connections."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(timeout=_START_SECONDS)

    def close(self) -> None:
        """End it and remove what it stored."""
        try:
            if self._process is not None and self._process.poll() is None:
                self.kill()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _make(self) -> None:
        if self._user is not None:
            shutil.chown(self._folder, self._user.pw_uid, self._user.pw_gid)
        data = self._folder / "data"
        options = (
            "--username=raygam",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--no-instructions",
            "--no-sync",
        )
        made = self._popen("initdb", "-D", str(data), *options, output=subprocess.DEVNULL)
        if made.wait() != 0:
            raise RuntimeError(f"initdb failed in {self._folder}")
        (data / "pg_hba.conf").write_text(_ACCESS)

    def _popen(self, program: str, *arguments: str, output: int) -> subprocess.Popen[bytes]:
        user = None if self._user is None else self._user.pw_uid
        return subprocess.Popen(
            [str(self._binaries / program), *arguments],
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
            start_new_session=True,  # Ctrl-C is this process's to act on
            user=user,
            group=None if self._user is None else self._user.pw_gid,
            extra_groups=None if self._user is None else [],
        )


def _unprivileged() -> pwd.struct_passwd | None:
    """Who runs the server: another user where this process is root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise RuntimeError("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")
