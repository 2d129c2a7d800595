"""What notebooks show: HTML that is whole, needs nothing else, and says what the object holds."""

from __future__ import annotations

import builtins
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from rich.table import Table
from tests.helpers.browser import CHROMIUM, Browser

import tilewright as tw
from tilewright import notebook
from tilewright.bench.comparison import Candidate, Comparison
from tilewright.profile import Profile
from tilewright.tune.configs import Config
from tilewright.tune.results import Trial, Tuning
from tilewright.tune.results import as_text as trials_table_text

VOID = {"br", "hr", "meta", "link", "img", "input"}


class Page(HTMLParser):
    """Reads HTML, and fails where an element is not closed in its turn; keeps rows of tables, text and classes."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open, self.words, self.rows, self.kinds, self.tags = [], [], [], [], set()
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.kinds += (dict(attributes).get("class") or "").split()
        assert not {"src", "href", "onclick", "onload", "style"} & {name for name, _ in attributes}
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" in self.open:
            return
        self.words.append(data)
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data

    @property
    def text(self) -> str:
        return " ".join(self.words)


def shown(thing) -> Page:
    text = thing._repr_html_()
    assert not re.search(r"<script|https?:|@import|url\(|<iframe", text)
    return Page(text)


@tw.kernel
def conflicting(out, x):
    part, i = tw.shared(tw.float32, 1024), tw.thread_idx.x
    part[32 * i] = x[2 * i]
    tw.sync_threads()
    out[i] = tw.where(part[32 * i] < 1, part[0], 2)


@tw.kernel
def racing(out, x):
    out[0] += x[tw.thread_idx.x]


OUT, X = np.zeros(32, np.float32), np.ones(64, np.float32)


def test_a_profile_shows_each_line_with_its_figures():
    profile = conflicting[1, 32].analyze(OUT, X)
    page = shown(profile)
    by_line = {row[0]: row for row in page.rows[1:]}
    assert set(by_line) == {str(line.line) for line in profile.by_line()} | {"sum"}
    for line in profile.by_line():
        assert by_line[str(line.line)][-1] == line.text
        if line.shared_requests:
            assert by_line[str(line.line)][2:4] == [str(line.shared_wavefronts), str(line.shared_wavefronts_ideal)]
        if line.global_requests:
            assert by_line[str(line.line)][4:6] == [str(line.global_sectors), str(line.global_sectors_ideal)]
    assert "part[32 * i] < 1" in page.text  # escaped on the way, as it was on arrival
    assert "conflicting: grid 1, block 32" in page.text and "bank conflict: " in page.text
    assert "hot" in page.kinds


def test_an_autotuned_kernel_shows_what_it_tunes_and_what_it_found():
    @tw.autotune([tw.Config(step=1), tw.Config(step=2)], store=None, progress=False)
    @tw.kernel
    def fill(out, step: tw.constexpr):
        out[tw.thread_idx.x] = 1.0

    page = shown(fill)
    assert "autotuned fill(out)" in page.text and "step" in page.text
    assert "found in this process" not in page.text
    fill[1, 32](OUT.copy())
    assert "step=1" in shown(fill).text


def test_nothing_is_marked_where_nothing_is_wasted():
    @tw.kernel
    def copy(out, x):
        out[tw.thread_idx.x] = x[tw.thread_idx.x]

    assert "hot" not in shown(copy[1, 32].analyze(OUT, X)).kinds


def test_a_profile_says_what_it_is_in_a_line():
    assert repr(conflicting[1, 32].analyze(OUT, X)) == (
        "Profile(conflicting: grid 1, block 32, 65 wavefronts (3 ideal), 12 sectors (8 ideal))"
    )
    assert repr(Profile()) == "Profile()"
    assert "No kernel was measured." in shown(Profile()).text


def test_launches_that_are_alike_are_shown_once_and_others_apart():
    with tw.simulate(profile=True) as run:
        for block in (32, 32, 16):
            conflicting[1, block](OUT, X)
    page = shown(run.report())
    assert "2 launches" in page.text and "launched 2 times alike" in page.text
    assert page.text.count("conflicting: grid 1, block") == 2
    assert "conflicting: grid 1, block 32" in repr(run.profile) and "sectors (8 ideal), 2 times;" in repr(run.profile)


def test_launches_of_other_arrays_are_shown_apart():
    """Also where all figures are the same; another number is no other launch."""

    @tw.kernel
    def scale(x, factor):
        x[tw.thread_idx.x] *= factor

    with tw.simulate(profile=True) as run:
        for size, factor in ((32, 2.0), (64, 2.0), (32, 3.0)):
            scale[1, 32](np.ones(size, np.float32), factor)
    page = shown(run.report())
    assert "2 launches" in page.text and all(array in str(run.report()) for array in ("float32[32]", "float32[64]"))
    assert page.text.count("launched 2 times alike") == 1


def test_lines_of_several_files_are_told_apart(tmp_path):
    (tmp_path / "helpers.py").write_text("def twice(x):\n    return x + x\n")
    names: dict = {}
    exec(compile((tmp_path / "helpers.py").read_text(), tmp_path / "helpers.py", "exec"), names)
    twice = names["twice"]

    @tw.kernel
    def kernel(out, x):
        out[tw.thread_idx.x] = twice(x[tw.thread_idx.x])

    page = shown(kernel[1, 32].analyze(OUT, X))
    assert {"helpers.py:2"} < {row[0] for row in page.rows}


@pytest.mark.parametrize("profile", [False, True])
def test_a_run_shows_its_findings_and_what_it_measured(profile):
    with tw.simulate(profile=profile, raise_errors=False) as run:
        racing[1, 32](OUT, X)
        conflicting[1, 32](OUT, X)
    page = shown(run)
    assert f"{len(run.findings)} findings" in page.text and "ran racing, conflicting" in page.text
    for finding in run.findings:
        assert all(line.strip() in page.text for line in finding.message.splitlines())
    assert (len(page.rows) > 0) == profile
    assert repr(run).startswith("Run(racing, conflicting; race at test_notebook.py:")


def test_a_run_without_findings_says_so():
    with tw.simulate() as run:
        conflicting[1, 32](OUT, X)
    assert "no findings" in shown(run).text and repr(run) == "Run(conflicting; no findings)"
    with tw.simulate() as run:
        pass
    assert "ran no kernel" in shown(run).text


class Printer:
    """What IPython hands to `_repr_pretty_`."""

    def __init__(self):
        self.text_so_far = ""

    def text(self, text):
        self.text_so_far += text

    def break_(self):
        self.text_so_far += "\n"


def test_findings_and_remarks_show_their_messages():
    with tw.simulate(raise_errors=False) as run:
        racing[1, 32](OUT, X)
    for thing in (run.findings[0], conflicting[1, 32].analyze(OUT, X).remarks[0]):
        assert all(line.strip() in shown(thing).text for line in thing.message.splitlines())
        printer = Printer()
        thing._repr_pretty_(printer, False)
        assert printer.text_so_far == thing.message


def test_a_launcher_says_what_it_would_launch():
    page = shown(conflicting[(4, 2), 32])
    assert "kernel conflicting(out, x)" in page.text and "conflicting[(4, 2), 32](out, x)" in page.text
    assert "out[i] = tw.where(part[32 * i] < 1, part[0], 2)" in page.text
    assert repr(conflicting[(4, 2), 32]) == "<kernel conflicting[(4, 2), 32]>"
    assert "conflicting(out, x)" in shown(conflicting).text

    def blocks(out, x):
        return 1

    assert repr(conflicting[blocks, 32]) == "<kernel conflicting[blocks(...), 32]>"


def test_a_kernel_shows_parameters_as_they_are_called():
    class Plan:
        @tw.kernel
        def method(self, out, *xs):
            out[0] = xs[0][0]

    assert "kernel method(out, *xs)" in shown(Plan().method).text


def test_a_kernel_whose_source_is_gone_still_shows(tmp_path):
    file = tmp_path / "gone.py"
    file.write_text("import tilewright as tw\n@tw.kernel\ndef gone(out):\n    out[0] = 1\n")
    names: dict = {}
    exec(compile(file.read_text(), str(file), "exec"), names)
    file.unlink()
    assert "kernel gone(out)" in shown(names["gone"]).text


@pytest.mark.parametrize("dtype", [tw.float32, tw.bfloat16])
def test_an_explanation_shows_all_candidates_and_one_choice(dtype):
    matrix = tw.spec(dtype, (500, 500))
    found = tw.matmul.explain(matrix, matrix)
    page = shown(found)
    assert len(page.rows) == 1 + len(found.candidates) and page.kinds.count("chosen") == 1
    chosen = page.rows[1 + found.candidates.index(found.choice)]
    assert chosen[:3] == ["->", found.choice.family.name, str(found.choice.configuration)]
    assert repr(found) == str(found) and "TFLOP/s predicted" in page.text


def test_an_explanation_of_nothing_has_no_table():
    page = shown(tw.matmul.explain(tw.spec(tw.float32, (0, 4)), tw.spec(tw.float32, (4, 4))))
    assert page.rows == [] and "nothing is launched" in page.text


def test_a_tuning_shows_all_trials_and_the_best():
    configs = [Config({"tile": tile}) for tile in (32, 64, 128)]
    trials = (
        Trial(configs[0], "ok", 0.25),
        Trial(configs[1], "ok", 0.125),
        Trial(configs[2], "failed", None, "a < b & c"),
    )
    page = shown(Tuning(configs[1], trials, "measured", 0.125, complete=False))
    assert [row[1:] for row in page.rows] == [
        ["ms", ""],
        ["0.1250", "best"],
        ["0.2500", ""],
        ["-", "failed: a < b & c"],
    ]
    assert page.kinds.count("chosen") == 1 and "measured; the time budget ended the search" in page.text
    assert "0.1250 ms" in page.text and str(configs[1]) in page.text
    assert shown(Tuning(configs[0], (), "stored", 0.5)).rows == []


@pytest.mark.parametrize("host_bound", [False, True])
def test_a_comparison_shows_each_candidate_against_the_baseline(host_bound):
    fast, slow = Candidate("fast", (1.0, 1.1, 0.9), 4, host_bound=host_bound), Candidate("slow", (2.0, 2.2, 1.8), 4)
    comparison = Comparison({"slow": slow, "fast": fast}, "slow", 0)
    page = shown(comparison)
    assert [row[4] for row in page.rows] == ["ratio", "1.000", "2.000"] and page.kinds.count("chosen") == 1
    for text in (page.text, str(comparison)):
        assert ("* the host's time" in text) == host_bound


def test_what_is_compiled_shows_its_source():
    lowered = conflicting.lower(OUT, X, block=32)
    assert lowered.source.text in "".join(shown(lowered).words)


def test_what_a_cell_ends_with_is_a_line():
    """Not the fields of a dataclass, and no address."""
    assert repr(tw.spec(tw.bfloat16, (64, 32))) == "tw.spec(tw.bfloat16, (64, 32))"
    strided = tw.spec(tw.float32, (64, 32), stride=(1, 64), align=4)
    assert repr(strided) == "tw.spec(tw.float32, (64, 32), stride=(1, 64), align=4)"
    assert repr(eval(repr(strided), {"tw": tw})) == repr(strided)
    assert repr(tw.spec(tw.int8, ())) == "tw.spec(tw.int8, ())"
    assert repr(conflicting[1, 32].prepare(OUT, X)) == "<prepared launch: grid (1, 1, 1), block (32, 1, 1)>"
    source = conflicting.lower(OUT, X, block=32).source
    assert repr(source) == f"<source of conflicting, {len(source.text.splitlines())} lines>"


def test_help_is_no_part_of_a_listing():
    """It folds, where a listing scrolls: on a telephone its end was out of sight."""
    page = notebook.message(
        "bank conflict: much\n    kernel.py:3\n      x = y\n    help: give <x> a layout\n      of its own"
    )
    assert "<pre>kernel.py:3\n  x = y</pre>" in page
    assert '<div class="help">help: give &lt;x&gt; a layout\n  of its own</div>' in page
    assert "<pre>" not in notebook.message("wrong\n  help: do this") and "help: do this" in notebook.message(
        "a\n  help: do this"
    )
    assert 'class="help"' not in notebook.message("wrong\n  here")


@pytest.mark.parametrize(
    "thing",
    [
        tw.Layout((4, 8)),
        tw.Swizzle(2, 0, 3),
        tw.atoms.SM80_16x8x8_F32TF32TF32F32_TN,
        tw.atoms.UniversalFMA(tw.float32),
        tw.atoms.UniversalCopy(128),
        tw.atoms.SM75_U32x4_LDSM_N,
        tw.make_tiled_copy(tw.atoms.UniversalCopy(), tw.Layout(32), tw.Layout(4)),
        tw.identity_tensor((4, 4)),
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_layouts_tensors_and_atoms_show_a_picture(thing):
    picture = thing._repr_svg_()
    assert picture.startswith("<svg") and "<script" not in picture
    Page(picture)


# --- in Jupyter ----------------------------------------------------------------------------------------------------


class ZMQInteractiveShell:
    """By this name rich knows that it runs in Jupyter."""


@pytest.fixture
def in_jupyter(monkeypatch):
    monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)
    displayed: list = []
    monkeypatch.setattr("rich.jupyter.display", lambda *what: displayed.append(what))
    return displayed


def test_text_in_jupyter_is_the_text_and_no_outputs_of_its_own(in_jupyter):
    matrix = tw.spec(tw.float32, (500, 500))
    with tw.simulate(profile=True) as run:
        conflicting[1, 32](OUT, X)
    report = run.report()
    assert "sum" in report and "occupancy" in str(report)
    assert "multistage" in str(tw.matmul.explain(matrix, matrix))
    assert "no" in trials_table_text(Table("no", "candidates"))
    assert in_jupyter == []


# --- style ---------------------------------------------------------------------------------------------------------


def variables(text: str) -> dict[str, str]:
    return dict(re.findall(r"(--\w+): ([^;]+);", text))


def test_both_themes_give_a_value_to_all_that_the_style_uses():
    light, dark = variables(notebook._LIGHT), variables(notebook._DARK)
    assert set(light) == set(dark) == set(re.findall(r"var\((--\w+)\)", notebook.STYLE))


@pytest.mark.parametrize(("theme", "page"), [(notebook._LIGHT, "#ffffff"), (notebook._DARK, "#1e1e1e")])
def test_accents_can_be_read_on_the_page(theme, page):
    def luminance(colour: str) -> float:
        parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for name in ("--hot", "--good", "--soft"):
        a, b = sorted((luminance(variables(theme)[name]), luminance(page)))
        assert (b + 0.05) / (a + 0.05) >= 4.5, name


def test_rules_of_the_style_touch_nothing_outside():
    rules = re.sub(r"@media[^{]*\{", "", notebook.STYLE)
    selectors = [s for group in re.findall(r"([^{}]+)\{", rules) for s in group.split(",")]
    assert [s for s in selectors if s.strip() and ".tilewright" not in s] == []


def test_rules_for_tables_win_over_those_of_jupyterlab():
    """`:not(.jp-RenderedMarkdown).jp-RenderedHTMLCommon td` counts two classes and an element; equals: the later wins."""
    outside = re.sub(r"@media[^{]*\{", "", notebook.STYLE)
    for selector in (s.strip() for group in re.findall(r"([^{}]+)\{", outside) for s in group.split(",")):
        if re.search(r"\b(td|th|tr|table|left)\b", selector):
            elements = len(re.findall(r"(?:^|\s)(?:td|th|tr|table|tbody|thead)\b", selector))
            assert (selector.count("."), elements) >= ((2, 2) if re.search(r"\btr$", selector) else (2, 1)), selector


def test_all_that_is_shown_is_escaped():
    bad = "<b>&"
    parts = [
        notebook.heading(bad),
        notebook.paragraph(bad),
        notebook.table([notebook.Column(bad)], [notebook.Row([bad])]),
        notebook.facts([(bad, bad)]),
        notebook.listing(bad),
        notebook.details(bad),
        notebook.message(f"{bad}\n  {bad}"),
    ]
    page = Page(notebook.box(bad, *parts, note=bad))
    assert "b" not in page.tags and page.text.count(bad) == 12


# --- in a browser --------------------------------------------------------------------------------------------------


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
def test_tables_fit_a_telephone(tmp_path):
    """Source, predictions and help are all within the screen; at the width of a desk nothing is folded."""
    matrix = tw.spec(tw.bfloat16, (4096, 4096))
    things = [conflicting[1, 32].analyze(OUT, X), tw.matmul.explain(matrix, matrix)]
    body = "<hr>".join(thing._repr_html_() for thing in things)
    path = tmp_path / "cells.html"
    path.write_text(f"<meta charset=utf-8><meta name=viewport content='width=device-width'><body>{body}")
    with Browser(390, 800) as browser:
        browser.open(path)
        inside = (
            "[...document.querySelectorAll('.scroll:has(table), .help')].every(e => e.scrollWidth <= e.clientWidth)"
        )
        assert browser.value(inside) and browser.value("document.documentElement.scrollWidth") <= 390
        mark = "[...document.querySelectorAll('td')].find(e => e.textContent == '->').getClientRects().length"
        assert browser.value(mark) == 1
        browser.resize(1200, 900)
        heights = "new Set([...document.querySelectorAll('td')].map(e => e.offsetHeight)).size"
        assert browser.value(heights) <= 2  # of plain rows and of sums, which have a line above
