"""Names that the text tower cannot read or tell apart are refused; those it never learned to read are warned about."""

import warnings
from dataclasses import replace

import pytest

from bayescal.backbones.checks import Findings, check_prompts, name_notes
from bayescal.errors import BayescalWarning, DataError
from bayescal.text.prompt_layout import Layout
from bayescal.text.prompt_tree import PromptTree

# start token, 4 context vectors, ".", end token: 70 of the mini tower's 77 positions are left for a name, and 27 of the
# 34 that training reached
ROOM, TRAINED = 70, 27


def quietly(backbone, names, *more) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_prompts(backbone, names, *more)


def test_ordinary_names_pass_without_a_word(mini):
    quietly(mini, ["dog", "art painting", "camera 7", "camera 8", "1", "2", "golden retriever"])


def test_a_name_as_long_as_the_room_is_read_and_a_longer_one_refused(mini):
    longest, too_long = " ".join(["dog"] * ROOM), " ".join(["dog"] * (ROOM + 1))
    with pytest.warns(BayescalWarning, match="longer than any text"):
        check_prompts(mini, ["cat", longest])
    with pytest.raises(DataError, match=rf"'dog dog .* takes {ROOM + 1} tokens; with 4 context .* has room for {ROOM}"):
        check_prompts(mini, ["cat", too_long])


def test_the_bound_is_the_tower_s_own(mini):
    """One token more and the tower itself would refuse: the check neither gives room away nor allows too much."""
    suffix = mini.tokenize(".")
    layout = Layout(n_context=4)
    names = [[mini.tokenize(" ".join(["dog"] * n))] for n in (ROOM, ROOM + 1)]
    context = mini.text.positions.new_zeros(1, 1, 4, mini.text.width)
    PromptTree(mini.text, [names[0]], layout, suffix)(context)
    with pytest.raises(ValueError, match="does not fit"):
        PromptTree(mini.text, [names[1]], layout, suffix)(context)


def test_context_vectors_take_room(mini):
    name = " ".join(["dog"] * 60)
    with pytest.raises(DataError, match="with 16 context vectors the text tower has room for 58"):
        check_prompts(mini, [name], 16)
    short = " ".join(["dog"] * 20)
    quietly(mini, [short], 4)
    with pytest.warns(BayescalWarning, match="longer than any text"):
        check_prompts(mini, [short], 16)


def test_a_name_beyond_the_trained_positions_is_warned_about(mini):
    quietly(mini, ["cat", " ".join(["dog"] * TRAINED)])
    with pytest.warns(BayescalWarning, match="longer than any text that backbone 'mini 2' was trained on: 'dog dog"):
        check_prompts(mini, ["cat", " ".join(["dog"] * (TRAINED + 1))])


def test_names_that_look_alike_to_the_tower_are_refused(mini):
    """Tokens that training never saw share one embedding: 鳥 and 魚 are the same three unknown tokens."""
    with (
        pytest.warns(BayescalWarning, match="of these 2 names: '鳥', '魚'"),
        pytest.raises(DataError, match=r"'mini 2' cannot tell the names '鳥' and '魚' apart.*--class-words FILE.json"),
    ):
        check_prompts(mini, ["dog", "鳥", "魚"])
    # it is true of the tower, not only of the check
    bird, fish, dog = mini.encode_texts(["鳥", "魚", "dog"])
    assert bird.equal(fish)
    assert not bird.equal(dog)


def test_unknown_names_are_warned_about_together(mini):
    """One warning with all of them and what to do: a set with a hundred odd names says it once."""
    with pytest.warns(BayescalWarning) as caught:
        check_prompts(mini, ["dog", "鳥", "ख"])
    (warning,) = caught
    text = str(warning.message)
    assert text.startswith("backbone 'mini 2' has never seen the words of these 2 names: '鳥', 'ख'. ")
    assert '--class-words FILE.json, or class_words= in Python, with {"NAME": "plain words"}' in text
    with pytest.warns(BayescalWarning, match="of this name: '鳥'.*--environment-words FILE.json.*environment_words="):
        check_prompts(mini, ["dog", "鳥"], kind="environment")


def test_names_that_are_not_english_are_in_the_same_warning(mini):
    """Names of no language, and names of others of which the tower has seen some pieces; each of them once."""
    plain = ["dog", "T-shirt", "7", "rock & roll", "o'clock", "model (new)"]
    quietly(mini, plain)
    quietly(replace(mini, known_tokens=None), plain)
    with pytest.warns(BayescalWarning) as caught:
        check_prompts(mini, ["dog", "鳥", "maison à louer", "!?"])
    (warning,) = caught
    assert str(warning.message).startswith(
        "backbone 'mini 2' has never seen the words of these 2 names: '鳥', '!?'; it was trained on English, and "
        "this name is not plain English: 'maison à louer'. Describe them"
    )
    with pytest.warns(BayescalWarning, match="trained on English, and this name is not plain English: '鳥'. Describe"):
        check_prompts(replace(mini, known_tokens=None), ["dog", "鳥"])


def test_names_are_said_as_class_words_wants_them(mini):
    """A name that is a code stands beside its words, or nobody would know what to write into the file."""
    with pytest.warns(BayescalWarning, match=r"this name: 'n07' \(\"melanoma\"\)\. Describe"):
        check_prompts(mini, ["dog", "melanoma"], None, "class", ["dog", "n07"])
    with pytest.warns(BayescalWarning, match=r"this name: 'Melanoma_'\. Describe"):
        check_prompts(mini, ["dog", "melanoma"], None, "class", ["dog", "Melanoma_"])


def test_a_long_list_of_unknown_names_is_cut(mini):
    names = [chr(0x4E00 + i) * (i + 1) for i in range(22)]  # more tokens each: they can be told apart
    with pytest.warns(BayescalWarning, match="these 22 names: .* and 2 more. Describe"):
        check_prompts(replace(mini, trained_context=77), names, 0)


def test_names_are_read_without_a_tower_as_with_one(mini):
    """What `data check` says before anything is loaded."""
    assert name_notes("mini", ["dog", "golden retriever"]) == Findings(None, None)
    words = ["dog", "鳥", "魚", "DOG"]
    found = name_notes("mini", words)
    with pytest.warns(BayescalWarning) as caught, pytest.raises(DataError) as refused:
        check_prompts(mini, words)
    assert found == Findings(str(refused.value), str(caught[0].message))
    assert found.strange
    assert found.strange.startswith("backbone 'mini 2' has never seen the words of these 2 names: '鳥', '魚'.")
    assert found.alike
    assert "cannot tell the names 'dog' and 'DOG', nor '鳥' and '魚' apart" in found.alike
    lower = name_notes("mini@bfloat16", ["鳥"], "environment").strange
    assert lower
    assert lower.startswith("backbone 'mini 2@bfloat16' has never")
    # trained on the whole vocabulary
    assert name_notes("RN50:openai", ["melanoma", "lymphoma"]) == Findings(None, None)
    assert "trained on English" in (name_notes("RN50:openai", words).strange or "")


def test_a_known_word_beside_an_unknown_one_tells_names_apart(mini):
    quietly(mini, ["small melanoma", "large melanoma"])


def test_a_tower_that_knows_every_token_tells_them_apart(mini):
    quietly(replace(mini, known_tokens=None), ["melanoma", "lymphoma"])


def test_names_with_the_same_tokens_are_refused_by_every_tower(mini):
    with pytest.raises(DataError, match="cannot tell the names 'dog' and 'DOG' apart"):
        check_prompts(replace(mini, known_tokens=None), ["dog", "cat", "DOG"])
