"""Who is known by which name, and what happens to those who are not."""

import textwrap

import pytest

import bayescal
import outside_methods
from bayescal.errors import BayescalWarning, MethodError
from bayescal.methods import (
    find_method,
    get_method,
    method_identity,
    method_names,
    method_reference,
    outside_names,
    register_method,
)
from bayescal.methods.contract import COMMON, Method
from bayescal.methods.registry import BUILT_IN
from bayescal.methods.text.coop import CoOp
from outside_methods import WORDS, Mean, installed, odd_method

SOURCE = textwrap.dedent("""
    from bayescal.methods.text.coop import CoOp

    class Mine(CoOp):
        name = "mine"
        title = "Mine"

    class Other(CoOp):
        name = "other"
""")
DECLARED = "[bayescal.methods]\nmine = mine_module:Mine\n"


@pytest.fixture(autouse=True)
def _nothing_from_outside():
    yield
    outside_methods.forget()


@pytest.fixture
def distribution(tmp_path):
    with installed(tmp_path / "site", "mine-dist", {"mine_module.py": SOURCE}, DECLARED) as folder:
        yield folder


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_built_in_method_is_a_whole_one_under_its_own_name(name):
    method = find_method(name)
    assert method.name == name
    assert find_method(method) is method  # a class is checked as one from outside is
    assert method_reference(method) == name
    assert method_identity(method) == (name if method.version == 1 else f"{name} version {method.version}")
    assert method_reference(f"bayescal.methods.{BUILT_IN[name]}") == name


def test_a_method_is_found_by_name_class_and_reference(distribution):
    mine = get_method("mine_module:Mine")
    assert (mine.name, issubclass(mine, CoOp)) == ("mine", True)
    assert get_method("mine") is get_method(mine) is mine
    assert get_method(Mean) is Mean
    assert bayescal.get_method is get_method


def test_what_is_saved_is_what_others_can_find(distribution):
    other = get_method("mine_module:Other")
    assert method_reference("mine_module:Mine") == method_reference(get_method("mine")) == "mine"
    assert method_reference(other) == "mine_module:Other"  # the distribution declares it under no name
    register_method(other)
    assert method_reference(other) == "mine_module:Other"  # this process alone knows it by name
    assert get_method("other") is other


def test_names_from_outside_are_listed_apart(distribution):
    assert outside_names() == ["mine"]
    register_method(Mean)
    assert outside_names() == ["mean", "mine"]
    assert not set(outside_names()) & set(method_names())


def test_registering_is_a_decorator_and_may_be_repeated():
    @register_method
    class Local(CoOp):
        name = "local"

    assert get_method("local") is Local
    assert get_method(method_reference(Local)) is Local  # by a reference that nobody could import

    first = Local

    @register_method
    class Local(CoOp):  # the cell of a notebook, run again
        name = "local"

    assert get_method("local") is Local is not first


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("copo", "there is no method 'copo'. Did you mean 'coop'?"),
        ("my_module.MyMethod", "A class is written module:Class, here my_module:MyMethod"),
        ("nowhere.at_all:Mine", "cannot be imported here: No module named 'nowhere'. Install the distribution that"),
        ("math:Mine", "the module 'math' has no 'Mine'"),
        ("math:sqrt", "math:sqrt: expected a method, a subclass of bayescal.Method; found <built-in function sqrt>"),
        ("a b:c", "expected MODULE:NAME"),
        (int, "expected a method, a subclass of bayescal.Method; found <class 'int'>"),
        (7, "expected a method's name or its class, found 7"),
        ("jigsaw", "--end-to-end --vision resnet50"),
    ],
)
def test_what_is_no_method_is_refused_with_what_to_do(method, said):
    with pytest.raises(MethodError) as refused:
        get_method(method)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import nonexistent_thing", "importing 'broken_module' failed (ModuleNotFoundError: No module named 'nonexis"),
        ("1 / 0", "importing 'broken_module' failed (ZeroDivisionError: division by zero)"),
        ("def (", "importing 'broken_module' failed (SyntaxError"),
    ],
)
def test_a_mistake_in_somebodys_module_is_called_that(source, said, tmp_path):
    with (
        installed(tmp_path, "broken", {"broken_module.py": source}),
        pytest.raises(MethodError) as refused,
    ):
        get_method("broken_module:Mine")
    assert said in str(refused.value)


SOME = {**COMMON}


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"title": ""}, "has a title of ''"),
        ({"citation": 3}, "has a citation of 3"),
        ({"name": "My Method"}, "has the name 'My Method': expected lower-case"),
        ({"name": "a:b"}, "has the name 'a:b'"),
        ({"name": "bayes-cal"}, "the name 'bayes-cal' is that of bayescal.methods.text.bayes_cal:BayesCAL"),
        ({"space": {"epochs": 3}}, "has a space that is no search space"),
        ({"space": outside_methods.WITHOUT_EPOCHS}, "is trained by gradient but has no epochs in its space"),
        ({"file_options": ("words",)}, "names the file option 'words', which is not in its space"),
        ({"on_features": False}, "learns neither on features nor end to end"),
        ({"end_to_end": True}, "takes no network: derive it from VisualMethod"),
        ({"__init__": None, "base": Method}, "does not define init, logits, loss, prepare"),
    ],
)
def test_a_class_that_is_not_a_whole_method_is_told_what_is_missing(attributes, said):
    attributes.pop("__init__", None)
    base = attributes.pop("base", CoOp)
    method = odd_method(base, **{"space": SOME, **attributes} if base is Method else attributes)
    for use in (register_method, get_method):
        with pytest.raises(MethodError) as refused:
            use(method)
        assert said in str(refused.value)
        assert "outside_methods:Odd" in str(refused.value)


def test_attributes_that_are_missing_are_all_named():
    bare = type("Bare", (Method,), {"name": "bare", "learns": WORDS["learns"], "cost": WORDS["cost"]})
    with pytest.raises(MethodError, match=r"does not say its title, citation, space: class attributes"):
        register_method(bare)


def test_a_name_belongs_to_one_class(distribution):
    register_method(odd_method())
    with pytest.raises(MethodError, match=r"outside_methods:Mean: the name 'odd' is that of outside_methods:Odd"):
        register_method(odd_method(Mean, __qualname__="Mean"))
    with pytest.raises(MethodError, match=r"the name 'mine' is that of mine_module:Mine of mine-dist 1\.5"):
        register_method(odd_method(name="mine"))


def test_a_name_that_two_distributions_declare_is_neithers(distribution, tmp_path):
    second = "[bayescal.methods]\nmine = second_module:Mine\n"
    with (
        installed(tmp_path / "two", "second", {"second_module.py": SOURCE}, second),
        pytest.raises(MethodError, match=r"'mine' is declared twice, by .*mine-dist 1\.5.*second 1\.5"),
    ):
        get_method("mine")


def test_a_declared_name_must_be_the_methods_own(tmp_path):
    wrong = "[bayescal.methods]\nyours = mine_module:Mine\n"
    with (
        installed(tmp_path, "mine-dist", {"mine_module.py": SOURCE}, wrong),
        pytest.raises(MethodError, match="declares the method 'yours', but mine_module:Mine calls itself 'mine'"),
    ):
        get_method("yours")


def test_nobody_takes_over_a_name_of_the_package(tmp_path):
    bold = "[bayescal.methods]\ncoop = mine_module:Mine\n"
    with installed(tmp_path, "bold", {"mine_module.py": SOURCE}, bold):
        assert get_method("coop") is CoOp
        with pytest.warns(BayescalWarning, match=r"the method 'coop' of bold 1\.5 is not used"):
            assert outside_names() == []


def test_listing_names_imports_nothing(tmp_path):
    declared = "[bayescal.methods]\nbroken = broken_module:Mine\n"
    with installed(tmp_path, "broken", {"broken_module.py": "1 / 0"}, declared):
        assert outside_names() == ["broken"]
        with pytest.raises(MethodError, match=r"failed \(ZeroDivisionError.*declared by broken 1\.5"):
            get_method("broken")


def test_a_version_makes_another_identity():
    assert method_identity(odd_method()) == "outside_methods:Odd"
    assert method_identity(odd_method(version=2)) == "outside_methods:Odd version 2"
