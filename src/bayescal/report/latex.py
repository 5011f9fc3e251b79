r"""Tables as LaTeX with booktabs: best in \textbf, second in \underline, published columns in grey.

A table needs booktabs, graphicx, xcolor and amssymb; `document` is a whole file that has them.
Every character compiles with pdfLaTeX: those that its fonts lack are written as U+… rather than left out.
"""

from collections.abc import Sequence
from itertools import pairwise

from bayescal.benchmark.results import Section, Table
from bayescal.report.tables import BEST, SECOND, Cell, Heading, View, column_groups, view
from bayescal.report.text import Addresses, paragraphs, slug, spans

PREAMBLE = r"""\documentclass[a4paper]{article}
\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\usepackage[margin=2cm]{geometry}
\usepackage{booktabs,graphicx,xcolor,amssymb,textcomp}
\setlength{\belowcaptionskip}{4pt}
\setlength{\parindent}{0pt}
\setlength{\parskip}{4pt plus 1pt}
"""
# α … ω and the capitals that have a name of their own; "-": letters that LaTeX takes from the Latin alphabet.
SMALL = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi - pi rho - sigma tau upsilon phi chi psi "
    "omega"
)
CAPITAL = {
    "Γ": "Gamma",
    "Δ": "Delta",
    "Θ": "Theta",
    "Λ": "Lambda",
    "Ξ": "Xi",
    "Π": "Pi",
    "Σ": "Sigma",
    "Φ": "Phi",
    "Ψ": "Psi",
    "Ω": "Omega",
}
_MEANT = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "-": "{-}",  # two of them would become a dash
    "−": "$-$",
    "–": "--",
    "—": "---",
    "…": r"\ldots{}",
    "’": "'",
    "‘": "`",
    "“": "``",
    "”": "''",
    "±": r"$\pm$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "≈": r"$\approx$",
    "→": r"$\rightarrow$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "∞": r"$\infty$",
    "✓": r"\checkmark{}",
    "✗": r"$\times$",
    "°": r"$^\circ$",
    "µ": r"$\mu$",
    "²": r"$^2$",
    "³": r"$^3$",
    "⁻": r"$^-$",
    "₁": r"$_1$",
    "₂": r"$_2$",
    "₃": r"$_3$",
    "\u00a0": "~",
    "\u2009": r"\,",
    "\u202f": r"\,",
    "\t": " ",
    **{chr(ord("α") + i): rf"$\{name}$" for i, name in enumerate(SMALL.split()) if name != "-"},
    **{letter: rf"$\{name}$" for letter, name in CAPITAL.items()},
}


def table_latex(table: Table, label: str = "") -> str:
    r"""A `table` float, as wide as the line at most. `label` defaults to `tab:` and the table's key."""
    seen = view(table)
    caption = escape(table.title) + (rf" (in {escape(seen.unit)})" if seen.unit else "")
    spec = "l" + "".join("c" if seen.is_text(j) else "r" for j in range(len(seen.columns)))
    body = [*_headings(seen), r"\midrule", *_rows(seen)]
    return "\n".join(
        [
            r"\begin{table}[!htbp]",
            r"\centering",
            rf"\caption{{{caption}}}",
            rf"\label{{{label or f'tab:{slug(table.key)}'}}}",
            r"\small",
            # No wider than the line, and never enlarged.
            r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
            rf"\begin{{tabular}}{{{spec}}}",
            r"\toprule",
            *body,
            r"\bottomrule",
            r"\end{tabular}}",
            *_below(seen),
            r"\end{table}",
            "",
        ]
    )


def document(sections: Sequence[Section], first_line: str) -> str:
    """All tables, as a file that compiles; each can also be copied out of it. Sections without a table are left out."""
    parts = [f"{first_line}\n{PREAMBLE}\\begin{{document}}\n"]
    labels = Addresses()
    for section in (section for section in sections if section.tables):
        parts.append(rf"\section*{{{escape(section.title)}}}" + "\n")
        parts += [prose(text) + "\n" for text in paragraphs(section.lead)]
        parts += [table_latex(table, f"tab:{labels.new(section.experiment, table.key)}") for table in section.tables]
        parts += [r"\textbf{What this does not show.} " + prose(text) + "\n" for text in paragraphs(section.limits)]
        parts.append(rf"{{\raggedright Rerun it: {_code(section.command)}\par}}" + "\n")
    return "\n".join([*parts, "\\end{document}\n"])


def escape(text: str) -> str:
    """Words as they are, on one line, in characters that pdfLaTeX has."""
    return "".join(_MEANT[c] if c in _MEANT else _plain(c) for c in " ".join(text.split(" ")).replace("\n", " "))


def prose(text: str) -> str:
    return "".join(_code(piece) if code else escape(piece) for code, piece in spans(text))


def _code(text: str) -> str:
    r"""In typewriter letters; a line may break after a blank, never inside a word."""
    return rf"\texttt{{{escape(text)}}}"


def _plain(character: str) -> str:
    if " " <= character <= "~" or character in "¡¿§©ß" or ("\u00c0" <= character <= "\u017e" and character.isalpha()):
        return character
    return rf"\texttt{{U+{ord(character):04X}}}"


def _headings(seen: View) -> list[str]:
    lines = []
    if seen.grouped:
        groups = column_groups(seen.columns)
        lines.append(" & ".join(["", *(_over(name, width) for name, width in groups)]) + r" \\")
        starts = [2]
        for _, width in groups:
            starts.append(starts[-1] + width)
        rules = [
            rf"\cmidrule(lr){{{start}-{end - 1}}}"
            for (name, _), (start, end) in zip(groups, pairwise(starts), strict=True)
            if name
        ]
        lines.append("".join(rules))
    titles = [_grey(_title(h), c.published) for h, c in zip(seen.headings, seen.columns, strict=True)]
    return [*lines, " & ".join(["", *titles]) + r" \\"]


def _title(heading: Heading) -> str:
    """That a column was published is said below its title, so that the column stays narrow."""
    title = escape(f"{heading.title} ({heading.unit})" if heading.unit else heading.title)
    return rf"\shortstack[r]{{{title}\\{{\scriptsize {escape(heading.paper)}}}}}" if heading.paper else title


def _over(name: str, width: int) -> str:
    return rf"\multicolumn{{{width}}}{{c}}{{{escape(name)}}}"


def _rows(seen: View) -> list[str]:
    lines, group = [], ""
    for row, cells in seen.rows:
        if row.group != group:
            lines += [r"\addlinespace"] if group or lines else []
            if row.group:
                lines.append(rf"\multicolumn{{{len(cells) + 1}}}{{l}}{{\textit{{{escape(row.group)}}}}} \\")
        group = row.group
        texts = [_cell(cell, seen.error_width(j), seen.columns[j].published) for j, cell in enumerate(cells)]
        lines.append(" & ".join([escape(row.label), *texts]) + r" \\")
    return lines


def _cell(cell: Cell, error_width: int, published: bool) -> str:
    text = escape(cell.text)
    text = {BEST: rf"\textbf{{{text}}}", SECOND: rf"\underline{{{text}}}"}.get(cell.rank, text)
    if cell.mark:
        text += rf"\rlap{{$^{{{cell.mark}}}$}}"
    if error_width and (cell.number or cell.text):
        text += _error(cell.error, error_width)
    return _grey(text, published and bool(text))


def _error(error: str, width: int) -> str:
    """Errors are as wide as the widest in the column, so that the means stand in line."""
    text = r"\phantom{0}" * (width - len(error)) + escape(error) if error else "0" * width
    small = rf"\,{{\scriptsize$\pm$\,{text}}}"
    return small if error else rf"\phantom{{{small}}}"


def _grey(text: str, grey: bool) -> str:
    return rf"\textcolor{{gray}}{{{text}}}" if grey else text


def _below(seen: View) -> list[str]:
    texts = [rf"$^{{{mark}}}$ {prose(why)}" for mark, why in seen.footnotes] + [
        prose(p) for p in paragraphs(seen.table.note)
    ]
    return [rf"\par\smallskip{{\footnotesize {text}\par}}" for text in texts]
