"""Word vectors: the npz and gensim's formats give the same vectors, names are put together from words, errors help."""

import sys

import numpy as np
import pytest
import torch

from bayescal.errors import BayescalWarning, MethodError
from bayescal.methods.text.word_vectors import load_word_vectors, words_of

WORDS = ["alarm", "clock", "dog", "Paris", "t", "shirt"]
TABLE = np.random.default_rng(0).normal(size=(5, 8)).astype(np.float16)
ROWS = np.array([0, 1, 2, 3, 4, 4], dtype=np.int32)  # "t" and "shirt" share a row
VECTOR = {word: torch.from_numpy(TABLE[row].astype(np.float32)) for word, row in zip(WORDS, ROWS, strict=True)}


@pytest.fixture
def npz(tmp_path):
    path = tmp_path / "vectors.npz"
    np.savez(path, words=np.array(WORDS), rows=ROWS, table=TABLE)
    return path


@pytest.fixture
def keyed():
    """The same vectors as gensim holds them."""
    pytest.importorskip("gensim", reason="gensim reads these formats and is not installed")
    from gensim.models import KeyedVectors

    vectors = KeyedVectors(vector_size=8)
    vectors.add_vectors(WORDS, np.stack([VECTOR[word].numpy() for word in WORDS]))
    return vectors


def test_words_of_a_name():
    assert words_of("alarm clock") == words_of("alarm_clock") == words_of(" alarm  clock. ") == ["alarm", "clock"]
    assert words_of("T-shirt") == ["T-shirt"]
    assert words_of("...") == ["..."]  # no word at all: an unknown word, not an empty mean


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("dog", ["dog"]),
        ("DOG", ["dog"]),
        ("paris", ["Paris"]),
        ("alarm clock", ["alarm", "clock"]),
        ("Alarm_Clock", ["alarm", "clock"]),
        ("T-shirt", ["t", "shirt"]),
        ("dog alarm clock", ["dog", "alarm", "clock"]),
    ],
)
def test_a_name_is_the_mean_of_its_words(npz, name, parts):
    expected = torch.stack([VECTOR[part] for part in parts]).mean(0)
    assert torch.allclose(load_word_vectors(npz).vector_of(name), expected, atol=1e-6)


def test_every_unknown_word_is_listed(npz):
    vectors = load_word_vectors(npz)
    with pytest.raises(MethodError, match=r"'zebra', 'wug', 'x-ray'.*oov='zero'"):
        vectors.vectors_of(["dog", "zebra", "alarm wug", "x-ray"])
    with pytest.raises(MethodError, match="'zebra'"):
        vectors.vector_of("zebra")
    with pytest.warns(BayescalWarning, match="zebra, wug"):
        found = vectors.vectors_of(["dog", "zebra", "alarm wug"], oov="zero")
    assert torch.equal(found[0], VECTOR["dog"])
    assert torch.equal(found[1], torch.zeros(8))
    assert torch.allclose(found[2], VECTOR["alarm"] / 2)
    with pytest.raises(MethodError, match="expected 'error' or 'zero'"):
        vectors.vectors_of(["dog"], oov="ignore")


def test_a_file_is_opened_once_until_it_changes(npz):
    first = load_word_vectors(npz)
    assert load_word_vectors(str(npz)) is first
    np.savez(npz, words=np.array(["dog"]), rows=np.array([0]), table=np.ones((1, 3)))
    assert torch.equal(load_word_vectors(npz).vector_of("dog"), torch.ones(3))


@pytest.mark.parametrize("kind", ["text", "binary", "glove", "kv", "text.gz"])
def test_gensim_formats(keyed, tmp_path, kind):
    path = tmp_path / {"binary": "v.bin", "kv": "v.kv", "text.gz": "v.txt.gz"}.get(kind, "v.txt")
    if kind == "kv":
        keyed.save(str(path))
    else:
        keyed.save_word2vec_format(str(path), binary=kind == "binary", write_header=kind != "glove")
    vectors = load_word_vectors(path)
    assert vectors.dim == 8
    for word in WORDS:
        assert torch.allclose(vectors.vector_of(word), VECTOR[word], atol=1e-3)  # half precision
    assert torch.allclose(vectors.vector_of("alarm clock"), (VECTOR["alarm"] + VECTOR["clock"]) / 2, atol=1e-3)
    with pytest.raises(MethodError, match="'zebra'"):
        vectors.vector_of("zebra")


def test_fasttext_binary_has_vectors_for_new_words(keyed, tmp_path):
    from gensim.models.fasttext import FastText, save_facebook_model

    model = FastText([["dog", "cat", "house"]] * 5, vector_size=6, min_count=1, epochs=1, bucket=50, workers=1)
    path = tmp_path / "fasttext.bin"
    save_facebook_model(model, str(path))
    vectors = load_word_vectors(path)
    assert torch.allclose(vectors.vector_of("dog"), torch.tensor(model.wv["dog"]), atol=1e-6)
    assert torch.equal(vectors.vector_of("Dog"), vectors.vector_of("dog"))  # the vocabulary before the n-grams
    assert torch.allclose(vectors.vector_of("doghouse"), torch.tensor(model.wv["doghouse"]), atol=1e-6)


def test_what_cannot_be_read_is_said(tmp_path, npz, monkeypatch):
    with pytest.raises(MethodError, match="no file of word vectors"):
        load_word_vectors(tmp_path / "absent.bin")
    np.savez(tmp_path / "other.npz", words=np.array(["a"]))
    with pytest.raises(MethodError, match="has no rows, table"):
        load_word_vectors(tmp_path / "other.npz")
    (tmp_path / "broken.npz").write_bytes(b"PK nothing")
    with pytest.raises(MethodError, match="cannot be read as word vectors"):
        load_word_vectors(tmp_path / "broken.npz")
    (tmp_path / "v.txt").write_text("dog 1 2 3\n")
    monkeypatch.setitem(sys.modules, "gensim", None)
    with pytest.raises(MethodError, match="needs gensim"):
        load_word_vectors(tmp_path / "v.txt")
    load_word_vectors(npz)  # needs none


def test_a_damaged_text_file(tmp_path, keyed):
    (tmp_path / "v.txt").write_text("2 3\ndog 1 2 3\ncat 1 x 3\n")
    with pytest.raises(MethodError, match="cannot be read as word vectors"):
        load_word_vectors(tmp_path / "v.txt")
