"""Names become the words a person would say, and names that cannot work are refused."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayescal.data.names import check_names, choose_words, to_words
from bayescal.errors import DataError


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("art_painting", "art painting"),
        ("realWorld", "real world"),
        ("RealWorld", "real world"),
        ("Real World", "real world"),
        ("Alarm-Clock", "alarm clock"),
        ("001.Black_footed_Albatross", "black footed albatross"),
        ("001.ak47", "ak47"),
        ("3.5_inch_disk", "3.5 inch disk"),
        ("2_door_car", "2 door car"),
        ("7", "7"),
        ("007", "007"),
        ("USAFlag", "usa flag"),
        ("TV", "tv"),
        ("  two   spaces_ ", "two spaces"),
        ("cafe\u0301", "caf\u00e9"),
        ("Straße", "straße"),
        ("___", ""),
    ],
)
def test_names_become_words(name, words):
    assert to_words(name) == words


@given(st.text(max_size=30))
def test_words_stay_as_they_are(name):
    words = to_words(name)
    assert to_words(words) == words
    assert words == " ".join(words.split())
    assert words == unicodedata.normalize("NFC", words)


def test_names_that_read_the_same_are_refused_with_both_originals():
    with pytest.raises(DataError, match=r"'Alarm-Clock' and 'alarm_clock'.*alarm clock"):
        check_names(["dog", "Alarm-Clock", "alarm_clock"], "class")


@pytest.mark.parametrize("name", ["", "  ", "_", "--"])
def test_empty_names_are_refused(name):
    with pytest.raises(DataError, match="no words"):
        check_names(["dog", name], "class")


@pytest.mark.parametrize("name", ["do\x00g", "do\tg", "dog\n", "\udce9t\udce9"])
def test_control_characters_and_broken_text_are_refused(name):
    with pytest.raises(DataError, match="control characters"):
        check_names([name], "environment")


def test_given_words_replace_the_check_of_the_raw_name():
    words = choose_words(["собака", "Cat", "cat"], {"собака": "dog", "Cat": "big cat"}, "class")
    assert words == ("dog", "big cat", "cat")
    with pytest.raises(DataError, match="the same to the model"):
        choose_words(["hound", "dog"], {"hound": "Dog"}, "class")


def test_words_for_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(DataError, match="Did you mean 'elephant'"):
        choose_words(["dog", "elephant"], {"elefant": "elephant"}, "class")
    with pytest.raises(DataError, match="The names are: dog, elephant"):
        choose_words(["dog", "elephant"], {"zzz": "elephant"}, "class")
    with pytest.raises(DataError, match="must be text"):
        choose_words(["dog"], {"dog": 3}, "class")
