"""The site that Sphinx builds of the pages: what becomes of links, and that every page can be reached."""

from __future__ import annotations

import importlib
import inspect
import linecache
import re
from types import ModuleType

import pytest
from tests.helpers.pages import DOCS
from tests.helpers.scripts import load_script

import tilewright as tw


@pytest.fixture(scope="module")
def conf() -> ModuleType:
    return load_script(DOCS / "conf.py")


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


def entries(reference: ModuleType) -> list[str]:
    """Return the full name of each entry of the reference, from the text of its pages."""
    texts = [reference._page(page) for page in reference.pages()]
    texts += [reference._page_of_source(module) for module in reference.READ_FROM_SOURCE]
    found = re.findall(r"^`{4}\{py:(?:function|class|data)\} ([\w.]+)", "\n".join(texts), re.M)
    return [name.replace("tw.", "tilewright.", 1) for name in found]


def test_every_public_name_has_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    reference = importlib.import_module("reference_pages")
    found = entries(reference)
    assert sorted(name for name in {*found} if found.count(name) > 1) == []
    missing = set()
    for module in ("tilewright", "tilewright.profile", *(f"tilewright.{name}" for name in tw._SUBMODULES)):
        there = importlib.import_module(module)
        for name in getattr(there, "__all__", [n for n in vars(there) if not n.startswith("_")]):
            value = getattr(there, name)
            # One entry is enough for what two modules export.
            others = [other for other in found if other.endswith(f".{name}") and _value(other) is value]
            missing |= set() if name == "__version__" or inspect.ismodule(value) or others else {f"{module}.{name}"}
    for module in (f"tilewright.{name}" for name in tw._OPTIONAL):
        missing |= {f"{module}.{name}" for name in reference.names_in_source(module)} - {*found, "tilewright.torch.nn"}
    assert missing == set()


def _value(name: str) -> object:
    module, _, attribute = name.rpartition(".")
    is_here = module.partition(".")[2] not in tw._OPTIONAL and "torch" not in module
    return getattr(importlib.import_module(module), attribute) if is_here else None


def test_every_function_says_what_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """In its docstring, or by the rule that the reference adds."""
    monkeypatch.syspath_prepend(str(DOCS))
    reference = importlib.import_module("reference_pages")
    rules, used, silent = importlib.import_module("reference_rules").RULES, set(), set()
    for page in reference.pages():
        module = importlib.import_module(page.module)
        for name in page.names:
            value = getattr(module, name)
            if inspect.ismodule(value) or inspect.isclass(value) or not callable(value):
                continue
            if not reference.names_errors(inspect.getdoc(value)):
                told = reference._rule_of(value, name)
                used.add(told)
                silent |= set() if told and told in reference._entry(page, name, value) else {f"{page.module}.{name}"}
    assert silent == set()
    assert {module for module, told in rules.items() if told not in used} == set()


REFUSED = {
    "tilewright.trace.threads": ("tw.lane_id()", None),
    "tilewright.instructions.cluster": ("tw.cluster_sync()", "sm_80"),
    "tilewright.instructions.wgmma": ("tw.wgmma_wait(0)", "sm_90"),
    "tilewright.instructions.barrier.sync_threads": ("if tw.thread_idx.x < 3: tw.sync_threads()", "sm_80"),
    "tilewright.instructions.cp_async": ("tw.cp_async_wait(-1)", "sm_80"),
    "tilewright.instructions.bulk_groups": ("tw.tma_store_commit()", "sm_80"),
    "tilewright.language.pipeline": ("tw.pipeline(1)", "sm_80"),
    "tilewright.instructions.vote": ("tw.vote_any(True)", None),
    "tilewright.instructions.shuffle": ("y[0] = tw.shuffle_xor(x[0], 1, width=3)", "sm_80"),
    "tilewright.instructions.match": ("y[0] = tw.match_any(x[0])", "gfx90a"),
    "tilewright.language.collectives": ("y[0] = tw.argmax('a')[0]", "sm_80"),
    "tilewright.trace.mathematics.popcount": ("y[0] = tw.popcount(x[0])", "sm_80"),
    "tilewright.instructions.products": ("y[0] = tw.mul_hi(x[0], x[1])", "sm_80"),
    "tilewright.instructions.bits": ("y[0] = tw.ffs(x[0])", "sm_80"),
    "tilewright.instructions.approximate": ("y[0] = tw.rcp_approx(tw.float64(1))", "sm_80"),
    "tilewright.language.random": ("y[0] = tw.rand(x[0], 1)", "sm_80"),
}


@pytest.mark.parametrize("module", REFUSED)
def test_a_rule_of_the_reference_holds(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    statement, target = REFUSED[module]
    assert "Raises `LanguageError`" in importlib.import_module("reference_rules").RULES[module]
    if target is None:  # outside of a kernel
        with pytest.raises(tw.LanguageError):
            eval(statement, {"tw": tw})
        return
    names = {"tw": tw}
    code = f"@tw.kernel\ndef kernel(y, x):\n    {statement}\n"
    linecache.cache[f"<{module}>"] = (len(code), None, code.splitlines(keepends=True), f"<{module}>")
    exec(compile(code, f"<{module}>", "exec"), names)
    array = tw.spec(tw.float32, (64,))
    with pytest.raises(tw.LanguageError):
        names["kernel"][1, 128].source(array, array, arch=target)
