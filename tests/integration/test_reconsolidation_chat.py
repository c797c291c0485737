"""Topics made anew by a chat model, spoken to over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.scripted_model import ScriptedModel, Step
from raygam.memory.errors import Misconfigured, ModelAway
from raygam.memory.model import User
from raygam.pipeline import cli_reconsolidate, cli_run
from raygam.pipeline.config import Settings, read_settings


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel() as server:
        yield server


def settings(**given: Any) -> Settings:
    return read_settings(**{"embedder": "stub", "partitions": 1, "workers": 0} | given)


def thinking(model: ScriptedModel, **given: Any) -> Settings:
    named = {"chat_url": model.url, "chat_model": model.name, "chat_concurrency": 3, "chat_timeout_seconds": 20}
    return settings(**named | given)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Three users of four sessions each, one of them of another tenant."""
    records = []
    for tenant, user in (("default", "ana"), ("default", "ben"), ("quiet", "cid")):
        for session in range(4):
            fields = {"tenant": tenant, "user_id": user, "session_id": f"s{session}", "speaker": "Ana", "role": "user"}
            for place, text in enumerate(("The greyhound Fen likes the harbour.", f"Fen swam there {session} times.")):
                time = 1_700_000_000_000 + session * 86_400_000 + place * 60_000
                records.append(
                    json.dumps(fields | {"message_id": f"{session}-{place}", "text": text, "timestamp": time})
                )
    source = tmp_path / "a.jsonl"
    source.write_text("\n".join(records) + "\n", encoding="utf-8")
    cli_run.run(source, tmp_path / "state", settings(), quiet=True)
    return tmp_path / "state"


def test_a_chat_model_makes_topics_anew_and_is_paid_once(model: ScriptedModel, state: Path, state_of: Any) -> None:
    before = state_of(state)
    model.asked.clear()
    quiet = thinking(model, chat_off_tenants=("quiet",), lease_seconds=1.0, chat_timeout_seconds=0.8)
    model.kill()
    with pytest.raises(ModelAway):
        cli_reconsolidate.built(state, quiet, User("default", "ana"))
    model.start()
    report = cli_reconsolidate.built(state, quiet, User("default", "ana"))
    assert (report["built"], report["topics"]["changed"], report["failed"]) == (1, 4, [])
    asked = dict(model.calls())
    assert set(asked) == {"summary", "relations"}
    assert asked["summary"] == 4
    assert asked["relations"] <= 3
    other = cli_reconsolidate.built(state, thinking(model, relations="rules"), User("default", "ana"))
    assert other["built"] == 1
    assert model.calls()["summary"] == 4, "answers to the same questions were kept"
    everyone = cli_reconsolidate.built(state, quiet, None)
    assert (everyone["built"], everyone["kept"]) == (3, 0), "other ports, another shadow"
    assert model.calls()["summary"] == 8, "Cid's tenant is left to rules"
    assert model.most_at_once <= 3
    assert state_of(state) == before
    cli_reconsolidate.switched(state, None)
    after = state_of(state)["users"]
    for name in ("default/ana", "default/ben"):
        assert {topic["model"] for topic in after[name]["topics"].values()} == {f"{model.name}@summary/1"}
        assert all(topic["label"] for topic in after[name]["topics"].values())
    assert {topic["model"] for topic in after["quiet/cid"]["topics"].values()} == {"extractive/1"}


def test_a_user_whose_answers_never_fit_is_named(model: ScriptedModel, state: Path) -> None:
    model.script(*(Step(text="once upon a time") for _ in range(2)))
    report = cli_reconsolidate.built(state, thinking(model, chat_model=None, chat_tries=2, chat_concurrency=1), None)
    assert report["model"] == f"{model.name}@summary/1, {model.name}@relations/1", "the endpoint names it"
    assert (report["built"], len(report["failed"]), report["interrupted"]) == (2, 1, False)
    assert "no answer that fits summary/1 in 2 tries" in report["failed"][0]["error"]
    with pytest.raises(Misconfigured, match="1 of 3 users have no shadow"):
        cli_reconsolidate.switched(state, None)


def test_without_an_endpoint_there_is_no_chat_model(state: Path) -> None:
    with pytest.raises(Misconfigured, match=r"run with --ray.*chat_url"):
        cli_reconsolidate.built(state, settings(vllm_model="somewhere/model"), None)
