"""Streams the example dialogues through the engine on Ray and asks three questions.

Run by `make demo`. Stopped with Ctrl-C it goes on when it is run again; a run that finds everything in place
only asks.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from raygam import RaygamError
from raygam.pipeline.cli import EXIT_INTERRUPTED, exit_code, stop_at_once_on_interrupt

HERE = Path(__file__).resolve().parent
QUESTIONS = (
    ("maya", "When is Maya's interview at the botanic garden?", "a date"),
    ("maya", "What did Jonas say about walnuts?", "a speaker"),
    ("graham", "What did Graham promise Theo, and did Theo get it?", "two memories"),
)


def main() -> int:
    """Run the demo; return the exit code."""
    stop_at_once_on_interrupt()
    from raygam.pipeline import cli_ray, cli_read, display  # a second, and Ctrl-C may come within it
    from raygam.pipeline.config import read_settings

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state", type=Path, default=Path("demo-state"), help="the state directory to make or use")
    parser.add_argument("--embedder", choices=("minilm", "stub"), help="default: minilm")
    arguments = parser.parse_args()
    source = HERE / "dialogues.jsonl"
    try:
        # Small chunks, so that the bar moves and Ctrl-C finds an edge soon.
        settings = read_settings(embedder=arguments.embedder, chunk_bytes=16 * 1024)
        display.output.print(
            f"raygam run {os.path.relpath(source)} --state {arguments.state} --ray",
            style="bold",
            markup=False,
            highlight=False,
        )
        report = cli_ray.run(source, arguments.state, settings, shards=None, workers=None, address=None)
        if report["interrupted"]:
            return EXIT_INTERRUPTED
        for user, question, shows in QUESTIONS:
            display.output.print()
            display.output.print(
                f'raygam search {user} "{question}" --state {arguments.state} -k 3 --explain   # {shows}',
                style="bold",
                markup=False,
                highlight=False,
            )
            answer = cli_read.search(arguments.state, settings, "default", user, question, k=3)
            display.output.print(display.memories_view(answer, explain=True))
    except RaygamError as error:
        display.errors.print(f"raygam: {error}", style="red", markup=False, highlight=False)
        return exit_code(error)
    display.output.print()
    display.output.print(
        "more questions to ask are in examples/README.md; each takes `.venv/bin/raygam search`", highlight=False
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
