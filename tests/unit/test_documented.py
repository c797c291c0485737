"""Pages that list what the code defines list all of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from raygam.pipeline.config import Settings
from raygam.pipeline.metrics import METRICS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(METRICS))
def test_every_metric_is_in_the_operators_table(name: str) -> None:
    metric = METRICS[name]
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `ray_{name}` |")]
    _, _, kind, labels, meaning, _ = (cell.strip() for cell in row.split("|"))
    assert (kind, labels, meaning) == (metric.kind, ", ".join(metric.labels) or "–", metric.help)


def test_no_metric_is_listed_that_is_not_there() -> None:
    listed = {line.split("`")[1] for line in PAGE.splitlines() if line.startswith("| `ray_raygam_")}
    assert listed == {f"ray_{name}" for name in METRICS}


@pytest.mark.parametrize("name", sorted(name for name in Settings.model_fields if name.startswith("ray_")))
def test_every_setting_of_ray_is_in_the_operators_page(name: str) -> None:
    assert f"| `{name}` |" in PAGE


def test_every_test_and_file_that_a_page_names_is_there() -> None:
    sources = {path: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")}
    known = {path.stem for path in sources} | set(re.findall(r"def (test_\w+)", "\n".join(sources.values())))
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        text = page.read_text(encoding="utf-8")
        assert set(re.findall(r"\btest_[a-z_0-9]+", text)) <= known, page
        named = re.findall(r"\b(?:actors|adapters|benchmarks|memory|pipeline|serving|tests)/[\w/]+\.py", text)
        assert not [name for name in named if not (ROOT / name).exists()], page
