"""What a process starts ends with it, however it ends.

An engine computes in processes of its own and does not notice that whoever started it was killed:
it would keep its GPU, and its successor would find no room there.
"""

from __future__ import annotations

import os
import subprocess

_watchers: list[subprocess.Popen[bytes]] = []


def end_together() -> None:
    """Give this process a process group, and somebody who kills what is left of it when the process has ended.

    The watcher reads from a pipe that nobody writes to. It ends with the process that holds the other
    end: this one alone, since neither programs that are started nor `spawn`ed children inherit it.
    """
    os.setpgid(0, 0)
    watcher = subprocess.Popen(
        ["/bin/sh", "-c", 'read -r _; kill -s KILL -- "-$0"', str(os.getpgrp())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    _watchers.append(watcher)  # while it is held, its pipe is open
