"""The package as users and tools see it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import raygam

ROOT = Path(__file__).resolve().parents[2]


def test_public_names_are_pinned() -> None:
    assert sorted(raygam.__all__) == [
        *("AddResult", "Answer", "BadAnswer", "Fenced", "LeaseLost", "Memory", "Misconfigured", "ModelAway"),
        *("RaygamError", "Rejected", "Retryable", "Stale", "StateLocked", "User"),
    ]
    assert all(getattr(raygam, name) for name in raygam.__all__)


def test_no_file_is_loaded_under_two_names() -> None:
    """A module that is loaded twice has two of every class, and `isinstance` breaks in silence."""
    names: dict[str, list[str]] = {}
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if path and Path(path).resolve().is_relative_to(ROOT) and ".venv" not in path and name != "__main__":
            names.setdefault(str(Path(path).resolve()), []).append(name)
    doubled = {path: found for path, found in names.items() if len(found) > 1}
    assert not doubled
    assert any(found == ["raygam.memory.model"] for found in names.values())


def test_the_domain_imports_nothing_heavy() -> None:
    script = (
        "import sys, raygam, raygam.memory.retrieval, raygam.memory.consolidation\n"
        "heavy = {'torch', 'faiss', 'sqlalchemy', 'pyarrow', 'ray', 'sentence_transformers', 'typer'}\n"
        "sys.exit(', '.join(sorted(heavy & sys.modules.keys())) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_packaged_folder_is_listed() -> None:
    import tomllib

    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    product = [ROOT / name for name in ("memory", "adapters", "pipeline", "actors", "serving")]
    folders = {path.parent for top in product for path in top.rglob("*.py")}
    assert {"raygam." + str(folder.relative_to(ROOT)).replace("/", ".") for folder in folders} == listed - {"raygam"}
    found = sorted(path.name for path in ROOT.glob("*.py"))
    assert found == ["__init__.py", "__main__.py"], "any other module here would ship"


def test_the_package_runs_as_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "raygam", "--help"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: raygam" in done.stdout
