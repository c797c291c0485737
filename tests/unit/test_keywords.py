"""Keywords: in the words of the dialogue, names first, no near duplicates, no speaker who is only called."""

from __future__ import annotations

from raygam.memory.entities import event_entities, named_in_sentences, speaker_names
from raygam.memory.keywords import MAX_KEYWORDS, SegmentTerms, keywords
from raygam.memory.words import han_pieces, han_runs, words


def found(*turns: tuple[str, str]) -> tuple[str, ...]:
    """Keywords of `(speaker, text)` turns."""
    said = [words(text) for _, text in turns]
    names = speaker_names({speaker for speaker, _ in turns})
    established = named_in_sentences(said)
    entities = [event_entities(text, said[at], established, names) for at, (_, text) in enumerate(turns)]
    return keywords(SegmentTerms.of(said, [han_runs(text) for _, text in turns]), entities, names)


def test_says_what_it_is_about() -> None:
    assert set(found(("Ana", "I love Sichuan food."))) == {"Sichuan", "food"}


def test_a_word_that_recurs_comes_first() -> None:
    result = found(
        ("Ana", "The cello arrived, with a bow and a heavy case."),
        ("Bo", "So you will play the cello?"),
        ("Ana", "Yes, cello lessons begin."),
    )
    assert result[0] == "cello"


def test_two_words_that_recur_together_are_one_phrase() -> None:
    result = found(("Ana", "The pottery class was full."), ("Bo", "Which pottery class?"), ("Ana", "A clay one."))
    assert result[0] == "pottery class"
    assert "pottery" not in result
    assert "class" not in result


def test_punctuation_parts_a_phrase() -> None:
    result = found(("Ana", "I sold pottery. Class began."), ("Bo", "Nice pottery. Class again?"))
    assert "pottery Class" not in result
    assert "pottery" in result


def test_forms_of_one_word_are_one_keyword() -> None:
    result = found(("Ana", "A violin, two violins, a violin's case."))
    assert [word for word in result if word.lower().startswith("violin")] == ["violin"]


def test_a_name_outweighs_a_common_word() -> None:
    assert found(("Ana", "The mountains near Porto interest me."))[0] == "Porto"


def test_a_name_of_two_words_stays_whole() -> None:
    result = found(("Ana", "We flew to New Zealand for sheep."))
    assert result[0] == "Zealand" or result[0] == "New Zealand"
    assert not {"Zealand", "New Zealand"} <= set(result)


def test_a_called_speaker_is_no_keyword() -> None:
    result = found(("Ana", "Hey Melanie! The kiln broke, Mel."), ("Melanie", "Thanks Ana, a kiln costs a fortune."))
    assert not {"Melanie", "Mel", "Ana"} & set(result)


def test_a_speaker_who_is_talked_about_may_be() -> None:
    result = found(("Bo", "Yesterday I met Ana at school, and Ana sang."), ("Ana", "Somebody told Ana that story."))
    assert "Ana" in result


def test_at_most_eight() -> None:
    text = "violin harbour candle engine pepper mirror saddle copper walnut basket lantern velvet"
    assert len(found(("Ana", text))) == MAX_KEYWORDS


def test_chinese_stays_chinese() -> None:
    """Case language-is-kept."""
    result = found(("小林", "我下周去东京，大概待五天。"), ("小林", "主要想去秋叶原。"))
    assert set(result) == {"东京", "秋叶原"}


def test_a_chinese_run_that_recurs_is_found_inside_others() -> None:
    result = found(("小林", "秋叶原电器街便宜"), ("小林", "昨天又去秋叶原了"))
    assert result[0] == "秋叶原"
    assert "秋叶" not in result
    assert "叶原" not in result


def test_mixed_languages_keep_their_forms() -> None:
    result = found(("小林", "我用 Kubernetes 部署服务"), ("小林", "Kubernetes 集群很稳定"))
    assert result[0] == "Kubernetes"
    assert any(not word.isascii() for word in result)


def test_counts_are_no_pieces() -> None:
    assert han_pieces("大概待五天") == []


def test_nothing_to_say() -> None:
    assert found(("Ana", "Oh, yes!"), ("Bo", "🙂🙂")) == ()
