"""The lock of a state directory: one engine writes, and the next is told which.

The kernel holds the lock (`flock`) and lets go of it when the process ends, however
it ends. An engine of one process holds it alone. The processes of a Ray cluster
share it: the first takes it alone, writes the cluster's name into the file, and goes on
with a shared lock, which another process of the same cluster may join.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import sys
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from ..memory.errors import Misconfigured, Retryable, StateLocked

LOCK_NAME = "state.lock"
_MAX_HOLDER_BYTES = 64 * 1024
_JOIN_SECONDS = 10.0
"""How long a cluster's process waits while the lock changes hands: a killed cluster's processes end one by one."""


class Holder(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who holds the lock: `started` is when it was taken, ISO 8601 in UTC; `cluster` is empty for one process."""

    pid: int
    host: str
    started: str
    command: str
    cluster: str = ""

    @classmethod
    def current(cls, cluster: str = "") -> Holder:
        """This process, now."""
        command = " ".join(sys.orig_argv)[:1000]
        return cls(os.getpid(), socket.gethostname(), datetime.now(UTC).isoformat(timespec="seconds"), command, cluster)


class StateLock:
    """A held lock. Take it with `acquire`, give it back with `release`.

    A forked child does not keep it: it would outlive the engine.
    """

    def __init__(self, path: Path, descriptor: int, *, shared: bool = False) -> None:
        self.path = path
        self._descriptor: int | None = descriptor
        self._shared = shared
        _HELD.add(self)

    @classmethod
    def acquire(cls, directory: Path, holder: Holder | None = None) -> StateLock:
        """Take the lock of a state directory.

        Raises:
            StateLocked: another engine has it, in this process or another.
            Misconfigured: the file system cannot make or lock the file.
            Retryable: the disk is full.
        """
        path, descriptor = _open(directory)
        with _closed_on_error(path, descriptor):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StateLocked(refusal(directory, _holder(descriptor))) from None
            _write(descriptor, holder or Holder.current())
        return cls(path, descriptor)

    @classmethod
    def join(cls, directory: Path, cluster: str) -> StateLock:
        """Take the lock as one of a cluster's processes, all of which may have it at a time.

        Raises:
            StateLocked: an engine of one process has it, or another cluster.
            Misconfigured: the file system cannot make or lock the file.
            Retryable: the disk is full.
        """
        path, descriptor = _open(directory)
        with _closed_on_error(path, descriptor):
            deadline = time.monotonic() + _JOIN_SECONDS
            while not _shared(descriptor, cluster):
                held = _holder(descriptor)
                if time.monotonic() >= deadline or (held is not None and not held.cluster and alive(held)):
                    raise StateLocked(refusal(directory, held))
                time.sleep(0.05)
        return cls(path, descriptor, shared=True)

    def release(self) -> None:
        """Give the lock back; twice is once. The file stays: removing it would race."""
        descriptor, self._descriptor = self._descriptor, None
        _HELD.discard(self)
        if descriptor is not None:
            try:
                if not self._shared:  # others of the cluster may go on, under the name that stands there
                    os.ftruncate(descriptor, 0)
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing alone would wait for copies in children
            finally:
                os.close(descriptor)

    def forget(self) -> None:
        """Close a forked child's copy; the parent keeps the lock."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


_HELD: weakref.WeakSet[StateLock] = weakref.WeakSet()


def _forget_all() -> None:
    for lock in list(_HELD):
        lock.forget()
    _HELD.clear()


os.register_at_fork(after_in_child=_forget_all)


def _open(directory: Path) -> tuple[Path, int]:
    path = directory / LOCK_NAME
    try:
        return path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise _unusable(path, error) from error


@contextmanager
def _closed_on_error(path: Path, descriptor: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        os.close(descriptor)
        raise _unusable(path, error) from error
    except BaseException:
        os.close(descriptor)
        raise


def _write(descriptor: int, holder: Holder) -> None:
    written = msgspec.json.encode(holder) + b"\n"
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, written, 0)


def _shared(descriptor: int, cluster: str) -> bool:
    """Try once to have a shared lock under the cluster's name."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _write(descriptor, Holder.current(cluster))
    except BlockingIOError:
        pass  # one process has it, or others share it
    try:
        # From alone to shared is not one step: another may come between, and then this fails.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    held = _holder(descriptor)
    if held is not None and held.cluster == cluster:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False


def alive(holder: Holder) -> bool:
    """Whether the holder still runs, as far as this machine can tell."""
    if holder.host != socket.gethostname():
        return True
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _holder(descriptor: int) -> Holder | None:
    """Who stands in the file; None between the taking of the lock and the writing of the name."""
    try:
        return msgspec.json.decode(os.pread(descriptor, _MAX_HOLDER_BYTES, 0), type=Holder)
    except msgspec.MsgspecError:
        return None


def refusal(state: object, holder: Holder | None) -> str:
    """Why a state cannot be written: who writes it, and what to do."""
    if holder is None:
        who = "another engine, which is just starting"
    elif holder.pid == os.getpid() and holder.host == socket.gethostname():
        who = f"this process itself (pid {holder.pid}), since {holder.started}"
    else:
        who = f"process {holder.pid} on {holder.host}, since {holder.started} ({holder.command})"
    if holder is not None and holder.cluster:
        who = f"the Ray cluster at {holder.cluster}, first by {who}"
    return (
        f"{state} is being written by {who}. One engine writes a state at a time: "
        "wait for it, stop it, or open another state; reading beside it is fine"
    )


def _unusable(path: Path, error: OSError) -> Misconfigured | Retryable:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Retryable(f"cannot write {path}: {error.strerror}; free space, then go on")
    if error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
        return Misconfigured(
            f"the file system of {path} cannot lock files ({error.strerror}); keep the state on a local disk"
        )
    return Misconfigured(
        f"cannot use {path} as the lock of a state directory: {error.strerror}; check the path and its permissions"
    )
