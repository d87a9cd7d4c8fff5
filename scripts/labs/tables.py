"""One plain table for the labs: a heading, columns as wide as their widest cell, numbers to the right."""

from collections.abc import Sequence


def table(heading: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table as text, one line a row, ending in a newline.

    >>> print(table("sizes", ("name", "n"), [("a", "10"), ("long", "9")]), end="")
    sizes
      name   n
      a     10
      long   9
    """
    widths = [max(len(row[place]) for row in (columns, *rows)) for place in range(len(columns))]
    right = [bool(rows) and all(_is_number(row[place]) for row in rows) for place in range(len(columns))]
    lines = [heading]
    for row in (columns, *rows):
        cells = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ]
        lines.append(f"  {'  '.join(cells)}".rstrip())
    return "\n".join(lines) + "\n"


def _is_number(cell: str) -> bool:
    if cell in ("", "-"):
        return True
    try:
        float(cell.rstrip("×%").replace(",", ""))
    except ValueError:
        return False
    return True
