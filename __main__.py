"""`python -m raygam`: the command line."""

from __future__ import annotations

from .pipeline.cli import main

if __name__ == "__main__":
    main()
