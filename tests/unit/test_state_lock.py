from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from raygam.adapters import state_lock
from raygam.adapters.state_lock import LOCK_NAME, Holder, StateLock
from raygam.memory.errors import Misconfigured, StateLocked

_HOLD = """
import sys, time
from pathlib import Path
from raygam.adapters.state_lock import StateLock
lock = StateLock.acquire(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def _holding_process(directory: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", _HOLD, str(directory)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_process_is_told_who_holds_the_lock_and_a_kill_frees_it(tmp_path: Path) -> None:
    process = _holding_process(tmp_path)
    with process:
        try:
            with pytest.raises(StateLocked) as refused:
                StateLock.acquire(tmp_path)
        finally:
            process.send_signal(signal.SIGKILL)
    message = str(refused.value)
    assert f"process {process.pid} on {socket.gethostname()}, since 20" in message
    assert "-c" in message  # the command
    assert "stop it" in message
    StateLock.acquire(tmp_path).release()


def test_the_same_process_is_refused_too(tmp_path: Path) -> None:
    lock = StateLock.acquire(tmp_path)
    with pytest.raises(StateLocked, match=rf"this process itself \(pid {os.getpid()}\)"):
        StateLock.acquire(tmp_path)
    lock.release()
    lock.release()
    StateLock.acquire(tmp_path).release()


def test_a_forked_child_does_not_keep_the_lock_of_a_dead_parent(tmp_path: Path) -> None:
    lock = StateLock.acquire(tmp_path)
    child_may_end, end_child = os.pipe()
    parent_may_go_on, tell_parent = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(end_child)  # so that it ends with the parent, whatever happens there
        os.write(tell_parent, b"x")
        os.read(child_may_end, 1)
        os._exit(0)
    try:
        os.read(parent_may_go_on, 1)
        lock.forget()  # closes the file as a death does
        StateLock.acquire(tmp_path).release()
    finally:
        for descriptor in (end_child, child_may_end, parent_may_go_on, tell_parent):
            os.close(descriptor)
        os.waitpid(child, 0)


def test_a_holder_that_has_not_written_its_name_yet(tmp_path: Path) -> None:
    lock = StateLock.acquire(tmp_path)
    (tmp_path / LOCK_NAME).write_bytes(b"")
    with pytest.raises(StateLocked, match="just starting"):
        StateLock.acquire(tmp_path)
    lock.release()


def test_what_a_killed_holder_left_is_written_over(tmp_path: Path) -> None:
    (tmp_path / LOCK_NAME).write_text("x" * 5000)
    lock = StateLock.acquire(tmp_path, Holder(7, "elsewhere", "2026-01-01T00:00:00+00:00", "raygam run"))
    assert (tmp_path / LOCK_NAME).read_text().endswith('"command":"raygam run"}\n')
    with pytest.raises(StateLocked, match=r"process 7 on elsewhere, since 2026-01-01T00:00:00\+00:00 \(raygam run\)"):
        StateLock.acquire(tmp_path)
    lock.release()


def test_a_path_that_cannot_hold_a_lock(tmp_path: Path) -> None:
    (tmp_path / LOCK_NAME).mkdir()
    with pytest.raises(Misconfigured, match=LOCK_NAME):
        StateLock.acquire(tmp_path)
    with pytest.raises(Misconfigured, match="check the path"):
        StateLock.acquire(tmp_path / "absent")


MEMBER = """
import sys
from pathlib import Path
from raygam.adapters.state_lock import StateLock
lock = StateLock.join(Path(sys.argv[1]), sys.argv[2])
print("held", flush=True)
sys.stdin.read()
"""


def member(directory: Path, cluster: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", MEMBER, str(directory), cluster], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def test_processes_of_one_cluster_share_the_lock(tmp_path: Path) -> None:
    members = [member(tmp_path, "127.0.0.1:1"), member(tmp_path, "127.0.0.1:1")]
    try:
        with pytest.raises(StateLocked, match=r"the Ray cluster at 127\.0\.0\.1:1, first by process"):
            StateLock.acquire(tmp_path)
        end(members.pop(0))  # the one that wrote the name
        StateLock.join(tmp_path, "127.0.0.1:1").release()
        with pytest.raises(StateLocked, match=r"the Ray cluster at 127\.0\.0\.1:1"):
            StateLock.acquire(tmp_path)
    finally:
        for process in members:
            end(process)
    StateLock.acquire(tmp_path).release()


def test_a_cluster_waits_for_nobody_elses_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_lock, "_JOIN_SECONDS", 0.2)
    first = StateLock.join(tmp_path, "127.0.0.1:1")
    with pytest.raises(StateLocked, match=r"the Ray cluster at 127\.0\.0\.1:1"):
        StateLock.join(tmp_path, "127.0.0.1:2")
    first.release()
    alone = StateLock.acquire(tmp_path)
    with pytest.raises(StateLocked, match="this process itself"):
        StateLock.join(tmp_path, "127.0.0.1:2")
    alone.release()
    StateLock.join(tmp_path, "127.0.0.1:2").release()
