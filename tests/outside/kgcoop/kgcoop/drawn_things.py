"""A data set by name that is not part of bayescal: three things in three styles."""

from bayescal.data.datasets.trees import as_words, tree_dataset

DRAWN_THINGS = tree_dataset(
    name="drawn-things",
    title="DrawnThings",
    shift="diversity",
    class_words=as_words("dog guitar house"),
    environment_words=as_words("cartoon photo sketch"),
    images=63,
    layout="""
    drawn-things/
        cartoon/
            dog/
                0.png
            guitar/ house/
        photo/
        sketch/""",
    source="drawn by tests/command_line.py",
    citation="",
)
