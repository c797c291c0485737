"""The lock of a state directory: one engine writes, and the next is told which.

The kernel holds the lock (`flock`) and lets go of it when the process ends, however
it ends. What stands in the file only names the holder.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import sys
import weakref
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from ..memory.errors import Misconfigured, Retryable, StateLocked

LOCK_NAME = "state.lock"
_MAX_HOLDER_BYTES = 64 * 1024


class Holder(msgspec.Struct, frozen=True):
    """Who holds the lock: `started` is when it was taken, ISO 8601 in UTC."""

    pid: int
    host: str
    started: str
    command: str

    @classmethod
    def current(cls) -> Holder:
        """This process, now."""
        command = " ".join(sys.orig_argv)
        return cls(os.getpid(), socket.gethostname(), datetime.now(UTC).isoformat(timespec="seconds"), command[:1000])


class StateLock:
    """A held lock. Take it with `acquire`, give it back with `release`.

    A forked child does not keep it: it would outlive the engine.
    """

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor
        _HELD.add(self)

    @classmethod
    def acquire(cls, directory: Path, holder: Holder | None = None) -> StateLock:
        """Take the lock of a state directory.

        Raises:
            StateLocked: another engine has it, in this process or another.
            Misconfigured: the file system cannot make or lock the file.
            Retryable: the disk is full.
        """
        path = directory / LOCK_NAME
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StateLocked(_refusal(directory, _holder(descriptor))) from None
            written = msgspec.json.encode(holder or Holder.current()) + b"\n"
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, written, 0)
        except OSError as error:
            os.close(descriptor)
            raise _unusable(path, error) from error
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor)

    def release(self) -> None:
        """Give the lock back; twice is once. The file stays: removing it would race."""
        descriptor, self._descriptor = self._descriptor, None
        _HELD.discard(self)
        if descriptor is not None:
            try:
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


def _holder(descriptor: int) -> Holder | None:
    """Who stands in the file; None between the taking of the lock and the writing of the name."""
    try:
        return msgspec.json.decode(os.pread(descriptor, _MAX_HOLDER_BYTES, 0), type=Holder)
    except msgspec.MsgspecError:
        return None


def _refusal(directory: Path, holder: Holder | None) -> str:
    if holder is None:
        who = "another engine, which is just starting"
    elif holder.pid == os.getpid() and holder.host == socket.gethostname():
        who = f"this process itself (pid {holder.pid}), since {holder.started}"
    else:
        who = f"process {holder.pid} on {holder.host}, since {holder.started} ({holder.command})"
    return (
        f"{directory} is being written by {who}. One engine writes a state directory at a time: "
        "wait for it, stop it, or open another directory; reading beside it is fine"
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
