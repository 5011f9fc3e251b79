"""The nearest known name, and the sentences that carry it."""

import pytest

from bayescal.util.suggest import closest, did_you_mean, or_did_you_mean

KNOWN = ("bayes-cal", "coop", "Office_Home", "groupdro")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bayescal", "bayes-cal"),
        ("BAYES_CAL", "bayes-cal"),
        ("office-home", "Office_Home"),
        ("cop", "coop"),
        ("gruopdro", "groupdro"),
    ],
)
def test_case_hyphens_and_slips_are_forgiven(name, expected):
    assert closest(name, KNOWN) == [expected]


def test_what_is_not_near_is_not_suggested():
    assert closest("zzz", KNOWN) == closest("coop", ()) == []
    assert did_you_mean("zzz", KNOWN) == ""
    assert or_did_you_mean("zzz", KNOWN) == "."


def test_several_come_nearest_first():
    known = ["resnet18", "resnet50", "vit"]
    assert closest("resnet5O", known, n=3)[0] == "resnet50"
    assert did_you_mean("resnet5O", known, n=3) == " Did you mean 'resnet50' or 'resnet18'?"
    assert or_did_you_mean("resnet5O", known) == "; did you mean 'resnet50'?"


def test_of_names_that_differ_in_case_alone_the_first_is_meant():
    assert closest("dog", ["Dog", "dog"]) == ["Dog"]
