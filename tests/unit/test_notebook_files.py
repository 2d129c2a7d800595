"""The notebooks are those of the pages, and their cells give what the pages say.

Cells run as IPython runs them: each from a file that only `linecache` has, its last expression displayed. Where IPython
is installed they run in its shell too.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import io
import json
import linecache
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.helpers.scripts import load_script
from tests.helpers.slow import rest_is_slow

import tilewright as tw

DOCS = Path(__file__).parents[2] / "docs"
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


MAKER = load_script(DOCS / "make_notebooks.py")


def cells_of(page, kind):
    found = json.loads((MAKER.FOLDER / f"{page}.ipynb").read_text(encoding="utf-8"))
    return [cell for cell in found["cells"] if cell["cell_type"] == kind]


def expected(page):
    """Return what a page says of each cell of code: the result of its last example."""
    blocks = MAKER._FENCE.findall((DOCS / f"{page}.md").read_text(encoding="utf-8"))
    return [examples[-1] for block in blocks for examples in MAKER.examples_by_cell(block)]


def without_carets(text):
    """Return a message without carets, which Python 3.10 cannot place."""
    return re.sub(r"^ *\^+\n", "", text, flags=re.MULTILINE)


class Shell:
    """Runs cells in one namespace, and keeps what they print, display and raise."""

    def __init__(self):
        self.names, self.count = {"__name__": "__main__"}, 0

    def run(self, code):
        """Run a cell; return what it shows as text, and the value that it displays."""
        self.count += 1
        file = f"<ipython-input-{self.count}-{abs(hash(code)):x}>"
        linecache.cache[file] = len(code), None, code.splitlines(keepends=True), file
        tree = ast.parse(code)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        printed, value = io.StringIO(), None
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, file, "exec"), self.names)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), file, "eval"), self.names)
        return printed.getvalue() + ("" if value is None else f"{value!r}\n"), value


@pytest.mark.parametrize("page", MAKER.PAGES)
def test_the_committed_notebook_is_that_of_the_page(page):
    text = (MAKER.FOLDER / f"{page}.ipynb").read_text(encoding="utf-8")
    assert text == MAKER.notebook(page), "run: python docs/make_notebooks.py"


def test_every_first_page_has_a_notebook_and_every_notebook_a_page():
    pages = {path.stem for path in DOCS.glob("first_*.md")} - {"first_hour"}
    assert {path.stem for path in MAKER.FOLDER.iterdir()} == set(MAKER.PAGES) == pages


@pytest.mark.parametrize("page", rest_is_slow(MAKER.PAGES, "first_kernel", "first_layer_norm"))
def test_cells_give_what_the_page_says(page):
    shell, cells, examples = Shell(), cells_of(page, "code"), expected(page)
    assert len(cells) == len(examples) > 5
    for cell, example in zip(cells, examples, strict=True):
        code = "".join(cell["source"])
        if "raises-exception" in cell["metadata"].get("tags", ()):
            with pytest.raises(tw.TilewrightError) as caught:
                shell.run(code)
            got, want = f"tilewright.{type(caught.value).__name__}: {caught.value}\n", example.exc_msg
            assert re.search(r"<ipython-input-\d+-\w+>:\d+, in ", got)  # a line of a cell
        else:
            (got, value), want = shell.run(code), example.want
            if hasattr(value, "_repr_html_"):
                assert value._repr_html_().startswith("<div")
        got, want = without_carets(got), without_carets(want)
        assert doctest.OutputChecker().check_output(want, got, OPTIONS), (code, want, got)


@pytest.mark.parametrize("page", MAKER.PAGES)
def test_notebooks_hold_nothing_of_a_machine(page):
    for cell in cells_of(page, "code"):
        assert cell["outputs"] == [] and cell["execution_count"] is None
    assert 'pip install ".[cuda]" jupyterlab' in "".join(cells_of(page, "markdown")[0]["source"])


@pytest.mark.parametrize("page", MAKER.PAGES)
def test_notebooks_have_the_form_that_version_4_5_asks_for(page):
    found = json.loads((MAKER.FOLDER / f"{page}.ipynb").read_text(encoding="utf-8"))
    assert (found["nbformat"], found["nbformat_minor"]) == (4, 5) and found["metadata"]["kernelspec"]["name"]
    ids = [cell["id"] for cell in found["cells"]]
    assert len(set(ids)) == len(ids) and all(re.fullmatch(r"[\w-]{1,64}", name) for name in ids)
    for cell in found["cells"]:
        keys = {"cell_type", "id", "metadata", "source"}
        assert set(cell) == keys | ({"outputs", "execution_count"} if cell["cell_type"] == "code" else set())
        assert ">>>" not in "".join(cell["source"])


@pytest.mark.parametrize("page", MAKER.PAGES)
def test_links_of_a_notebook_lead_somewhere(page):
    text = "".join("".join(cell["source"]) for cell in cells_of(page, "markdown"))
    text = re.sub(r"`[^`]+`", "", text)  # `kernel[grid, block](arguments)` is not a link
    targets = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text)
    assert [target for target in targets if not (MAKER.FOLDER / target).exists()] == []


IN_IPYTHON = r"""
import json, re, sys
from IPython.core.interactiveshell import InteractiveShell
import tilewright as tw

shell = InteractiveShell.instance()
for number, cell in enumerate(json.load(open(sys.argv[1]))["cells"]):
    if cell["cell_type"] == "code":
        found = shell.run_cell("".join(cell["source"]), store_history=True, silent=False)
        error, is_meant = found.error_in_exec or found.error_before_exec, "tags" in cell["metadata"]
        assert (error is not None) == is_meant, (number, error)
        if error is not None:
            assert isinstance(error, tw.TilewrightError) and re.search(r"In \[\d+\]:\d+, in ", str(error)), str(error)
print("all cells ran")
"""


@pytest.mark.parametrize("page", MAKER.PAGES)
def test_cells_run_in_ipython(page, tmp_path):
    pytest.importorskip("IPython")
    command = [sys.executable, "-c", IN_IPYTHON, str(MAKER.FOLDER / f"{page}.ipynb")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0 and done.stdout.endswith("all cells ran\n"), done.stdout + done.stderr


def test_what_is_code_on_a_page_is_the_same_code_in_its_notebook():
    text = (
        "`kernel[grid, block](arguments)` and [a page](layouts.md#modes), [a first one](first_softmax.md), `a`[b](c.md)"
    )
    assert MAKER._with_links(text) == (
        "`kernel[grid, block](arguments)` and [a page](../layouts.md#modes), [a first one](first_softmax.ipynb), "
        "`a`[b](../c.md)"
    )
