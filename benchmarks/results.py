"""The one form of every benchmark's `--json`, and the table a person reads."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

_PACKAGES = ("raygam", "numpy", "torch", "sentence-transformers", "faiss-cpu", "SQLAlchemy", "pyarrow", "msgspec")


@dataclass
class Results:
    """Collects `{"metric", "value", "unit", "params"}` rows; a metric's first row is its headline."""

    benchmark: str
    seed: int
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, metric: str, value: float, unit: str, **params: Any) -> None:
        self.rows.append({"metric": metric, "value": value, "unit": unit, "params": params})

    def document(self) -> dict[str, Any]:
        return {
            "benchmark": self.benchmark,
            "commit": _commit(),
            "seed": self.seed,
            "hardware": _hardware(),
            "versions": _versions(),
            "results": self.rows,
        }

    def write(self, path: Path | None) -> None:
        """Write the document to `path` ("-" is standard output); None writes nothing."""
        if path is None:
            return
        text = json.dumps(self.document(), indent=1, ensure_ascii=False)
        if str(path) == "-":
            sys.stdout.write(text + "\n")
        else:
            path.write_text(text + "\n", encoding="utf-8")

    def show(self) -> None:
        """Print the rows as a table on standard error."""
        table = Table(title=self.benchmark)
        for column in ("metric", "value", "unit", "params"):
            table.add_column(column, justify="right" if column == "value" else "left")
        for row in self.rows:
            shown = " ".join(f"{key}={value}" for key, value in row["params"].items())
            table.add_row(row["metric"], f"{row['value']:.4g}", row["unit"], shown)
        Console(stderr=True).print(table)


def _commit() -> str:
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "unknown"


def _hardware() -> dict[str, Any]:
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {"cpu": model, "cores": os.cpu_count(), "machine": platform.machine()}


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
