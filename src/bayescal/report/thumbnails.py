"""Small pictures of images: inside a page, and side by side on one sheet."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from bayescal.data import ImageError, ImageSource, read_image

if TYPE_CHECKING:
    from PIL import Image, ImageFont

INK, FAINT, PAPER, EMPTY = "#1b1f24", "#59636e", "#ffffff", "#e8ecf0"
RIGHT, WRONG = "#1a7f37", "#c0392b"


def thumbnail(source: ImageSource, side: int) -> "Image.Image | None":
    """The image, as large as fits into a square; None where it cannot be read (any more)."""
    try:
        image = read_image(source)
    except (ImageError, OSError):
        return None
    image = image.copy()
    image.thumbnail((side, side))
    return image


def data_uri(image: "Image.Image | None") -> str:
    """A picture as an address that needs no other file; "" for none."""
    if image is None:
        return ""
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=82)
    return f"data:image/jpeg;base64,{base64.b64encode(stream.getvalue()).decode()}"


@dataclass(frozen=True)
class Tile:
    """A picture on a sheet with what stands below it; the first line is bold, in its colour."""

    image: "Image.Image | None"
    lines: tuple[str, ...]
    colour: str = INK


def contact_sheet(title: str, rows: Sequence[Sequence[Tile]], side: int = 128) -> "Image.Image":
    """Rows of tiles under a title."""
    from PIL import Image, ImageDraw

    gap, line, top = 14, 15, 48
    n_lines = max((len(tile.lines) for row in rows for tile in row), default=0)
    step = side + gap, side + gap + line * n_lines + 6
    width = max(2 * gap + max((len(row) for row in rows), default=1) * step[0] - gap, 420)
    sheet = Image.new("RGB", (width, top + len(rows) * step[1] + gap), PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((gap, 14), fitting(title, width - 2 * gap, _font(17, True)), fill=INK, font=_font(17, True))
    for r, row in enumerate(rows):
        for c, tile in enumerate(row):
            x, y = gap + c * step[0], top + r * step[1]
            if tile.image is None:
                draw.rectangle((x, y, x + side - 1, y + side - 1), fill=EMPTY)
            else:
                sheet.paste(tile.image, (x + (side - tile.image.width) // 2, y + (side - tile.image.height) // 2))
            for i, text in enumerate(tile.lines):
                font = _font(12, not i)
                position = x, y + side + 3 + i * line
                draw.text(position, fitting(text, side + gap - 3, font), fill=FAINT if i else tile.colour, font=font)
    return sheet


def fitting(text: str, width: float, font: "ImageFont.FreeTypeFont") -> str:
    """As much of a text as fits into so many pixels."""
    text = "".join(letter if letter.isprintable() else "�" for letter in text)
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "…") > width:
        text = text[:-1]
    return text + "…"


@lru_cache
def _font(size: int, bold: bool = False) -> "ImageFont.FreeTypeFont":
    """matplotlib's own, which is there wherever this package is and has most alphabets."""
    from matplotlib import get_data_path
    from PIL import ImageFont

    name = f"DejaVuSans{'-Bold' if bold else ''}.ttf"
    return ImageFont.truetype(str(Path(get_data_path()) / "fonts" / "ttf" / name), size)


def save_sheet(path: Path, title: str, tiles: Sequence[Tile], columns: int = 5) -> None:
    """Tiles in rows, as a picture (.png) or as a page in itself (.html), whole or not at all."""
    from bayescal.util.atomic import replacing, write_text

    if path.suffix.lower() == ".html":
        from bayescal.report.page import environment

        shown = [(data_uri(tile.image), tile.lines) for tile in tiles]
        write_text(path, environment().get_template("sheet.html").render(title=title, tiles=shown))
        return
    rows = [tiles[at : at + columns] for at in range(0, len(tiles), columns)]
    with replacing(path) as draft:
        contact_sheet(title, rows, 144).save(draft, "PNG")
