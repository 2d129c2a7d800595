"""The site that Sphinx builds of the pages: what becomes of links, and that every page can be reached."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from types import ModuleType

import pytest
from tests.helpers.pages import DOCS


@pytest.fixture(scope="module")
def conf() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_conf", DOCS / "conf.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shown(conf: ModuleType, text: str, page: str = "language") -> str:
    source = [text]
    conf._without_files(None, page, source)
    return source[0]


@pytest.mark.parametrize(
    "code",
    [
        "`kernel[grid, block](*args)` launches",
        "a launch, `kernel[grid,\nblock](x)`, and `f[1](2)`",
        "### `kernel '...' is launched as kernel[grid, block](...), got kernel[...]`",
        "```python\nadd[4, 256](out, a, b)\n```\n",
        "~~~text\nsoftmax[(rows,)](y, x)\n~~~\n",
        "````{py:function} tw.f\n\n```python\nadd[4, 256](out)\n```\n\n```text\n1\n```\n````\n",
        "as in\n\n    >>> add[4, 256](out)\n    ... more[1](out)\n",
        "a listing\n\n    grouped[len(As), 128](tw.addresses(As), n)\n",
    ],
)
def test_code_stays_as_it_is(conf: ModuleType, code: str) -> None:
    assert shown(conf, code) == code


def test_links_to_files_are_names_and_links_to_pages_stay(conf: ModuleType) -> None:
    assert shown(conf, "see [softmax](../examples/kernels/softmax.py).") == "see softmax."
    assert shown(conf, "see [`examples/`](../examples) and `a[0](1)`") == "see `examples/` and `a[0](1)`"
    for kept in (
        "[rules](language.md#numbers)",
        "[a](https://example.org)",
        "![x](pictures/swizzle.svg)",
        "[b](#here)",
    ):
        assert shown(conf, kept) == kept
    assert shown(conf, "[rules](../language.md)", "how_to/tune") == "[rules](../language.md)"


def test_every_page_is_in_a_table_of_contents() -> None:
    listed = {"index"}
    for page in DOCS.rglob("*.md"):
        folder = page.parent.relative_to(DOCS).as_posix()
        for tree in re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S):
            for line in (line for line in tree.splitlines() if line and not line.startswith(":")):
                found = [line] if "*" not in line else [p.stem for p in (DOCS / folder).glob(f"{line}.md")]
                listed |= {
                    name if "*" not in line else f"{line.rpartition('/')[0]}/{name}".lstrip("/") for name in found
                }
    pages = {page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md")}
    assert sorted(page for page in pages - listed if not page.startswith("reference/")) == []


# Names that nothing can be run for here: what they hold or raise takes a GPU, a broken file or a fault of ours.
WITHOUT_EXAMPLES = {
    *("tw.CompileError", "tw.DeviceError", "tw.TuningError", "tw.InternalError", "tw.make_tensor_map"),
    *(f"tw.bench.{name}" for name in ("Comparison", "Occupancy", "Race", "Timing", "compare", "do_bench", "time_runs")),
    "tw.layout.DynamicInt",
}


def test_every_public_function_and_class_has_an_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """In its docstring or in `names_by_example.md`, whose programs `test_pages.py` runs."""
    monkeypatch.syspath_prepend(str(DOCS))
    reference = importlib.import_module("reference_pages")
    without = set()
    for page in reference.pages():
        module = importlib.import_module(page.module)
        for name in page.names:
            value, full = getattr(module, name), f"{page.module.replace('tilewright', 'tw')}.{name}"
            if not inspect.ismodule(value) and callable(value) and ">>>" not in (inspect.getdoc(value) or ""):
                without |= {full} - reference.examples().keys()
                assert full not in reference.examples() or reference.examples()[full] in reference._entry(
                    page, name, value
                )
    assert without == WITHOUT_EXAMPLES


def test_an_example_uses_the_names_that_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    reference = importlib.import_module("reference_pages")
    # Types are met as what a call returns.
    missing = {
        name
        for name, program in reference.examples().items()
        if name.rpartition(".")[2][0].islower() and not re.search(rf"\b{name.rpartition('.')[2]}\b", program)
    }
    assert missing == set()


def test_the_reference_has_what_is_read_from_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of modules that need a library, which is not imported for it."""
    monkeypatch.syspath_prepend(str(DOCS))
    pages = importlib.import_module("reference_pages")
    for module in pages.READ_FROM_SOURCE:
        text = pages._page_of_source(module)
        names = {name for name in pages.names_in_source(module) if f"{module}.{name}" not in pages.READ_FROM_SOURCE}
        assert names and {name for name in names if f"## {name}\n" not in text} == set()
        assert all(block.count("\n\n\n") == 0 for block in text.split("````")[1::2])  # each has a docstring
