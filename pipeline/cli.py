"""The entry of the command line: what Ctrl-C does, and what the exit codes mean.

Exit codes: 0 done; 1 failed; 2 wrong arguments, settings or input; 75 try again
later; 130 stopped by Ctrl-C.

Light, since the commands need a second to load: Ctrl-C then is one line as at any other time.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from types import FrameType
from urllib.parse import unquote

from ..memory.errors import Misconfigured, RaygamError, Rejected, Retryable

_PASSWORD = re.compile(r"(postgres(?:ql)?://[^:@/?#]*):([^@/?#]+)(?=@)")
_PASSWORD_AFTER = re.compile(r"(postgres(?:ql)?://.*[?&])password=([^&#]+)&?")

EXIT_FAILED, EXIT_WRONG, EXIT_RETRY, EXIT_INTERRUPTED = 1, 2, 75, 130


def main() -> None:
    """The `raygam` command."""
    _take_password_from_view()
    stop_at_once_on_interrupt()
    from . import cli_commands, display

    try:
        cli_commands.app(prog_name="raygam")
    except RaygamError as error:
        display.note(f"raygam: {error}", style="red")
        sys.exit(exit_code(error))


def _take_password_from_view() -> None:
    """Begin anew without the password that stands in a database's address.

    A command line is seen by everybody on the machine, told to whoever meets the state's lock, and kept by Ray.
    """
    arguments = sys.orig_argv
    for form in (_PASSWORD, _PASSWORD_AFTER):
        found = next((match for argument in arguments if (match := form.search(argument))), None)
        if found is not None:
            os.environ["PGPASSWORD"] = unquote(found[2])
            arguments = [form.sub(r"\1", argument) for argument in arguments]
    if arguments != sys.orig_argv:
        os.execv(sys.executable, arguments)


def stop_at_once_on_interrupt() -> None:
    """Make Ctrl-C one line and an exit code, wherever it comes."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else the caller had it ignored
        signal.signal(signal.SIGINT, _stop)


def exit_code(error: RaygamError) -> int:
    """The exit code that stands for an error."""
    if isinstance(error, Misconfigured | Rejected):
        return EXIT_WRONG
    return EXIT_RETRY if isinstance(error, Retryable) else EXIT_FAILED


def _stop(number: int, frame: FrameType | None) -> None:
    """End at once: a `KeyboardInterrupt` inside an import is caught there, or shown with its trace.

    While there is something to leave whole, `raygam run` has a handler of its own.
    """
    os.write(2, b"raygam: stopped\n")
    os._exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
