"""Write the first pages as notebooks: `python docs/make_notebooks.py`.

A page's text becomes cells of text, and its examples become cells of code, cut behind each example that shows a
result, because a notebook shows the last one of a cell. Results are not stored: running gives them. The tests run the
cells, and compare what is committed with what this writes.
"""

from __future__ import annotations

import doctest
import json
import re
from pathlib import Path
from typing import Any  # Any: JSON

DOCS = Path(__file__).parent
FOLDER = DOCS / "notebooks"
PAGES = ("first_kernel", "first_reduction", "first_softmax", "first_layer_norm", "first_product")

_OPENING = """\
This notebook is [the page of the same name]({page}). It runs without a GPU. In a checkout of the repository,

    pip install ".[cuda]" jupyterlab

installs what it needs; without `[cuda]`, everything but registers and occupancy is the same. Cells tagged
`raises-exception` are meant to fail: the message is what the text is about."""

_FENCE = re.compile(r"^```python\n(.*?)^```\n?", flags=re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(`[^`]+`|^```.*?^```)", flags=re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)((?:#[^)\s]*)?)\)")


def notebook(page: str) -> str:
    """Return a page as the text of a notebook."""
    text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
    title, _, rest = text.partition("\n")
    cells = [_text(f"{title}\n\n{_OPENING.format(page=f'../{page}.md')}")]
    for number, part in enumerate(_FENCE.split(rest)):
        cells += _code(part) if number % 2 else [_text(_with_links(part.strip()))] if part.strip() else []
    named = [{"cell_type": cell.pop("cell_type"), "id": f"cell-{n}", **cell} for n, cell in enumerate(cells)]
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    whole = {"cells": named, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def examples_by_cell(code: str) -> list[list[doctest.Example]]:
    """Return the examples of a block, cut behind each that shows a result."""
    cells: list[list[doctest.Example]] = [[]]
    for example in doctest.DocTestParser().get_examples(code):
        cells[-1].append(example)
        if example.want:
            cells.append([])
    return [cell for cell in cells if cell]


def _code(block: str) -> list[dict[str, Any]]:
    return [
        {
            "cell_type": "code",
            "execution_count": None,
            "metadata": {"tags": ["raises-exception"]} if examples[-1].exc_msg else {},
            "outputs": [],
            "source": _lines(_joined(examples)),
        }
        for examples in examples_by_cell(block)
    ]


def _joined(examples: list[doctest.Example]) -> str:
    """Return the code of examples, with a blank line around definitions."""
    text = ""
    for example in examples:
        is_definition = example.source.startswith(("@", "def ", "class "))
        text += "\n" * bool(text and is_definition) + example.source + "\n" * is_definition
    return text.strip("\n")


def _text(text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": _lines(text)}


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def _with_links(text: str) -> str:
    """Let links to pages with a notebook lead to that, and all others out of the folder."""

    def moved(match: re.Match[str]) -> str:
        target, anchor = match.groups()
        page = target.removesuffix(".md")
        return f"]({page}.ipynb{anchor})" if page in PAGES else f"](../{target}{anchor})"

    # What is between backticks may look like a link: `kernel[grid, block](arguments)`.
    return "".join(part if n % 2 else _LINK.sub(moved, part) for n, part in enumerate(_CODE.split(text)))


def main() -> None:
    """Write all notebooks."""
    FOLDER.mkdir(exist_ok=True)
    for page in PAGES:
        (FOLDER / f"{page}.ipynb").write_text(notebook(page), encoding="utf-8")


if __name__ == "__main__":
    main()
