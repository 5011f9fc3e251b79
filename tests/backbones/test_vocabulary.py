"""The words of a backbone: which they are, and that they are read as any text is."""

from dataclasses import replace

import pytest
import torch

from bayescal.backbones import load_backbone, vocabulary
from bayescal.backbones.vocabulary import word_features


@pytest.fixture(scope="module")
def mini():
    return load_backbone("mini", "cpu")


def test_words_are_whole_known_and_the_commonest_first(mini):
    words = vocabulary.vocabulary(mini)
    assert len(words) == vocabulary.MOST
    assert {"dog", "house", "banana"} <= set(words)
    assert all(mini.tokenize(word) == [token] for word, token in list(words.items())[::97])
    assert set(words.values()) <= mini.known_tokens
    assert list(words.values()) == sorted(words.values())


def test_words_that_training_never_saw_are_not_among_them(mini):
    dog, house = mini.tokenize("dog") + mini.tokenize("house")
    assert vocabulary.vocabulary(replace(mini, known_tokens=frozenset({dog, house, 0, 300}))) == {
        word: token for token, word in sorted([(dog, "dog"), (house, "house")])
    }


def test_features_are_those_of_the_sentences(mini, monkeypatch):
    monkeypatch.setattr(vocabulary, "MOST", 1500)  # more than are read at once
    monkeypatch.setattr(vocabulary, "_kept", {})
    words = list(vocabulary.vocabulary(mini))
    found = word_features(mini)
    assert found.shape == (1500, mini.dim)
    some = [0, 7, 1023, 1024, 1499]
    sentences = [mini.defaults.template.replace("{}", words[i]) for i in some]
    assert torch.allclose(found[some], mini.encode_texts(sentences), atol=1e-5)
    assert torch.equal(word_features(mini), found)


def test_a_large_tower_reads_fewer_words_but_not_too_few(mini, monkeypatch):
    each = mini.text.operations(3)  # the word, its full stop, the end
    for operations, count in ((500 * each, 500), (each, 200)):
        monkeypatch.setattr(vocabulary, "OPERATIONS", operations)
        monkeypatch.setattr(vocabulary, "LEAST", 200)
        monkeypatch.setattr(vocabulary, "_kept", {})
        assert len(word_features(mini)) == count


def test_a_backbone_without_words_has_none(mini, monkeypatch):
    monkeypatch.setattr(vocabulary, "_kept", {})
    assert word_features(replace(mini, known_tokens=frozenset(), fingerprint="none")).shape == (0, mini.dim)
