"""The tutorials: their examples give what they say, and their pictures are those that the code makes."""

from __future__ import annotations

import doctest
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tests.helpers.scripts import load_script

from tilewright.draw import svg

DOCS = Path(__file__).parents[3] / "docs"
PAGES = {
    "first_kernel.md": 20,
    "first_reduction.md": 40,
    "first_softmax.md": 30,
    "first_layer_norm.md": 25,
    "first_product.md": 40,
    "layouts.md": 40,
    "tensorcores.md": 30,
    "matmul.md": 10,
    "coming_from_cute.md": 7,
    "coming_from_triton.md": 8,
    "coming_from_cuda.md": 6,
    "coming_from_numba.md": 8,
    "coming_from_moye_and_cute.md": 30,
}  # and the least number of examples


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    return load_script(DOCS / "make_pictures.py")


class Checker(doctest.OutputChecker):
    """Compares outputs; before Python 3.11, which keeps no columns, without the carets that stand under them."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return super().check_output(without_carets(want), without_carets(got), optionflags)


def without_carets(text: str) -> str:
    return text if sys.version_info >= (3, 11) else re.sub(r"^ *\^+\n", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize("name", PAGES)
def test_examples_of_the_tutorial(name: str) -> None:
    page = DOCS / name
    # Text outside of the code becomes blank lines, so that a failure names the line of the page.
    parts = re.split(r"^```(?:python)?\n", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    code = "\n".join([part if number % 2 else "\n" * part.count("\n") for number, part in enumerate(parts)])
    test = doctest.DocTestParser().get_doctest(code, {}, page.name, str(page), 0)
    assert len(test.examples) > PAGES[name]
    results = doctest.DocTestRunner(Checker(), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE).run(test)
    assert results.failed == 0


def test_committed_pictures_are_those_of_the_code(maker: ModuleType) -> None:
    stale = [
        name
        for name, draw in maker.PICTURES.items()
        if (maker.FOLDER / f"{name}.svg").read_text(encoding="utf-8") != svg(draw())
    ]
    assert stale == [], "run: python docs/make_pictures.py"


def test_every_picture_is_shown_and_made(maker: ModuleType) -> None:
    made = {f"{name}.svg" for name in maker.PICTURES}
    assert {path.name for path in maker.FOLDER.iterdir()} == made
    texts = [(DOCS / page).read_text(encoding="utf-8") for page in (*PAGES, "schedule.md")]
    assert {picture for text in texts for picture in re.findall(r"\]\(pictures/([\w.]+)\)", text)} == made
