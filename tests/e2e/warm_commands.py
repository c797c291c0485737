"""Runs `raygam` commands in processes of their own that need not load anything first: each is forked from this one.

A line of JSON on standard input is a command: `argv`, the `folder` and `environment` that it runs in, and files for its
`out` and `err`. The answer is its exit code.
"""

import json
import os
import sys
from typing import Any

from raygam.pipeline import cli, cli_answer, cli_commands, cli_read, runtime

LOADED = (cli_answer, cli_commands, cli_read, runtime)
"""What nearly every command loads."""


def main() -> None:
    for line in sys.stdin:
        command = json.loads(line)
        child = os.fork()
        if not child:
            become(command)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        sys.stdout.write(f"{code}\n")
        sys.stdout.flush()


def become(command: dict[str, Any]) -> None:
    """Be the command, to its end."""
    for descriptor, path in ((0, os.devnull), (1, command["out"]), (2, command["err"])):
        opened = os.open(path, os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(opened, descriptor)
    os.chdir(command["folder"])
    os.environ.clear()
    os.environ.update(command["environment"])
    sys.argv = ["raygam", *command["argv"]]
    sys.orig_argv[:] = [sys.executable, "-m", *sys.argv]
    code: Any = 0
    try:
        cli.main()
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001 - the top of the process
        import traceback

        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    main()
