"""What names in messages and tables may do to a terminal: nothing.

Names of files, classes and environments come from anywhere. A terminal obeys escape sequences and letters that turn the
direction of writing, so that a name could clear the screen or rewrite the line above it: such letters are shown as
pictures of themselves.

A line break in a name could forge a line of a message or of a table. Names in tables and paths are shown on `one_line`;
what stands in a sentence cannot begin a line, because all lines of a message but its first are `indented`.
"""

import re

# What moves, colours or turns, but for tabs and line ends: C0, DEL, C1, and the marks of lines and writing direction.
OBEYED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]|\r(?!\n)")
_BREAKS = re.compile("[\r\n]")
_NEW_LINE = re.compile(r"\n(?=[^\s])")  # of a message, where nothing stands before its first word yet


def harmless(text: str) -> str:
    """The text as a terminal may be given it: "␛[31m" where there was an escape sequence."""
    return OBEYED.sub(lambda found: _picture(ord(found[0])), text)


def one_line(text: str) -> str:
    """A name as it stands in a line of a table or a list: "␊" where it had a line break."""
    return _BREAKS.sub(lambda found: _picture(ord(found[0])), text)


def indented(message: str) -> str:
    """A message whose further lines begin with blanks: nothing in it can look like a message of its own."""
    return _NEW_LINE.sub("\n  ", message)


def _picture(code: int) -> str:
    return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else "\ufffd"
