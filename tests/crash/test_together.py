"""What a process has started ends with it, although nobody told it to."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import psutil

STARTS = """
import subprocess, sys, time
from raygam.actors.together import end_together
end_together()
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


def test_a_killed_process_takes_what_it_started_with_it() -> None:
    parent = subprocess.Popen([sys.executable, "-c", STARTS], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    watchers = [one for one in psutil.Process(parent.pid).children() if one.pid != child.pid]
    assert child.is_running()
    assert len(watchers) == 1
    parent.send_signal(signal.SIGKILL)
    parent.wait(10)
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in [child, *watchers]):
        assert time.monotonic() < deadline, "it lives on"
        time.sleep(0.01)
