"""What the names of folders look like: dates, numbers, a camera's, or words that somebody chose."""

import pytest

from bayescal.data.name_kinds import kind_of


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (("2023", "2024"), "dates"),
        (("2023", "2024", "misc"), "dates"),  # most are
        (("2023-05-01", "2023-06-01", "unsorted"), "dates"),
        (("20230501_123000", "20230502_123059"), "dates"),
        (("2023-05-01 12.30", "20230501T123000"), "dates"),
        (("2023_spring", "2023_fall", "Winter 2022"), "dates"),
        (("2023", "misc"), None),  # one is not enough, nor is half
        (("2023", "2024", "dog", "cat"), None),
        (("spring", "summer"), None),
        (("May", "Anna", "Peter"), None),
        (("0", "1", "2"), "numbers"),
        (("01", "02", "03", "10", "11"), "numbers"),
        (("01", "02", "03", "background"), None),  # numbered classes
        (("2001", "2002", "3001"), "numbers"),
        (("100CANON", "101_PANA"), "a camera's folders"),
        (("20231399_123000", "20230501_993000"), None),  # no month, no hour
    ],
)
def test_kinds_of_names(names, kind):
    assert kind_of(set(names)) == kind
