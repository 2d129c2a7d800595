"""The HTML report: what it shows, and that a browser shows it: no console error, no request, keys, narrow screens."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from tests.helpers.browser import CHROMIUM, Browser
from tests.unit.profile import oracle

import tilewright as tw
from tilewright.arch import find_gpu
from tilewright.figures import Event, Launch, Line, Timeline
from tilewright.profile import pictures
from tilewright.profile.bounds import LaunchReport
from tilewright.profile.facts import roofline_text
from tilewright.profile.page import as_html
from tilewright.profile.report import Report
from tilewright.profile.shapes import overview
from tilewright.profile.text import as_data, as_text, differences
from tilewright.source import SourceLocation

THREADS = tw.Layout((8, 32), (32, 1))
LAYOUTS = tw.Layout((32, 32), (1, 32)), tw.Layout((32, 32), (33, 1))


@tw.kernel
def turn(dst, src, layout: tw.constexpr):
    smem = tw.shared(src.dtype, layout)  # <b>not a tag</b> & "quoted"
    tid = tw.thread_idx.x
    tw.copy(tw.local_partition(src, THREADS, tid), tw.local_partition(smem, THREADS, tid))
    tw.cp_async_wait()
    tw.sync_threads()
    tw.copy(tw.local_partition(smem.T, THREADS, tid), tw.local_partition(dst, THREADS, tid))


@tw.kernel
def add(z, x, y):
    i = tw.block_idx.x * tw.block_dim.x + tw.thread_idx.x
    z[i] = x[i] + y[i]  # <!-- <script>


@pytest.fixture(scope="module")
def report() -> Report:
    src, dst = (np.zeros((32, 32), np.float32) for _ in range(2))
    x = np.zeros(256, np.float32)
    with tw.simulate(profile=True) as run:
        for layout in LAYOUTS:
            turn[1, 256](tw.static(dst), tw.static(src), layout)
        add[4, 64](x, x, x)
    return run.report()


@pytest.fixture(scope="module")
def page(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    report.save(path)
    return path


class Outline(HTMLParser):
    """Which tags are open, to see that all are closed in order."""

    VOID = frozenset(["meta", "link", "rect", "line", "circle"])

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.external: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID or tag == "rect":
            self.open.append(tag)
        self.external += [v for k, v in attributes if k in ("src", "href") and v and not v.startswith("data:")]

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.external += [v for k, v in attributes if k in ("src", "href") and v and not v.startswith("data:")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag


def test_the_page_is_well_formed_and_alone(page: Path, report: Report) -> None:
    text = page.read_text()
    outline = Outline()
    outline.feed(text)
    assert outline.open == [] and outline.external == []
    assert "http" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert data is not None and json.loads(data[1]) == json.loads(report.json())
    assert "<" not in data[1]  # behind <!-- and <script> the end of the script would not count
    assert "&lt;b&gt;not a tag&lt;/b&gt;" in text and "<b>not a tag" not in text


def test_a_bank_map_has_a_row_for_each_wavefront(report: Report) -> None:
    for pattern in (p for launch in report.launches for b in launch.launch.buffers for p in b.patterns):
        buffer = next(
            b for launch in report.launches for b in launch.launch.buffers if any(p is pattern for p in b.patterns)
        )
        lanes = [int(e) * buffer.element_bytes if e >= 0 else None for e in pattern.elements]
        took, _ = oracle.wavefronts(lanes, pattern.width, pattern.kind)
        root = ElementTree.fromstring(pictures.bank_map(buffer, pattern, pattern.elements))
        cells = list(root.iter("rect"))
        assert len({cell.get("y") for cell in cells}) == took
        assert root.get("aria-label", "").startswith(f"{took} wavefronts")


def test_a_timeline_shows_copies_until_they_are_waited_for(report: Report) -> None:
    (found,) = report.launches[0].launch.timelines
    copies = [event for event in found.events if event.is_async]
    wait = next(event for event in found.events if event.kind == "wait")
    assert copies and all(event.landed == wait.step for event in copies)
    assert [event.step for event in found.events] == sorted(event.step for event in found.events)
    assert all(event.warps == 0xFF for event in found.events)
    boxes = ElementTree.fromstring(pictures.timeline(found)).findall("rect")
    thin = [event for event in found.events if event.kind == "compute"]  # a band for each warp
    # The copies of one wait are one bar, which ends where the wait begins.
    assert len(boxes) == len(found.events) + (found.warps - 1) * len(thin) + 1
    bar = boxes[-1]
    end = float(bar.get("x", "")) + float(bar.get("width", ""))
    assert any(abs(float(box.get("x", "")) - end) < 0.01 and box.get("class") == "k-wait" for box in boxes)


def test_arithmetic_does_not_fill_a_timeline() -> None:
    """The slab: hundreds of index computations between two copies took the whole picture."""
    events, step = [], 0
    for _ in range(20):
        events.append(Event(step, "compute", 1, 0b11, count=400))
        events.append(Event(step + 400, "cp.async", 2, 0b11, is_async=True, landed=step + 401))
        events.append(Event(step + 401, "wait", 3, 0b11))
        step += 402
    boxes = ElementTree.fromstring(pictures.timeline(Timeline((0, 0, 0), 2, events))).findall("rect")
    area = Counter[str]()
    for box in boxes:
        area[box.get("class", "")] += float(box.get("width", "")) * float(box.get("height", ""))
    assert area["k-compute"] < area["k-async"] + area["k-wait"]
    ends = [float(box.get("x", "")) for box in boxes if box.get("class") == "k-wait"]
    assert ends == sorted(ends) and len(set(ends)) == 20


def copies_and_products(is_cut: bool) -> Timeline:
    events = [Event(0, "tma load", 1, 0b1, is_async=True), Event(1, "mma", 2, 0b10, count=2, is_async=True)]
    return Timeline((0, 0, 0), 2, [*events, Event(2, "mbarrier wait", 3, 0b10, count=400)], is_cut)


@pytest.mark.parametrize(("is_cut", "end"), [(True, "not waited for in what is shown"), (False, "never waited for")])
def test_work_under_way_is_called_what_it_is(is_cut: bool, end: str) -> None:
    """Products of warpgroups are no copies, and what comes after the cut is not known."""
    boxes = list(ElementTree.fromstring(pictures.timeline(copies_and_products(is_cut))).iter("rect"))[3:]
    told = {box.get("class"): box.findtext("title") for box in boxes}
    assert told["k-async"] == f"1 copy, line 1, issued from step 0 on, {end}"
    assert told["k-mma"] == f"2 products, line 2, issued from step 1 on, {end}"


def test_the_overview_shows_what_takes_most_of_each_piece() -> None:
    """One row copies then computes, one waits all the time and multiplies within; none of it is one slab."""
    spans = [
        (0.0, 50.0, "k-async", 1),
        (0.0, 100.0, "k-compute", 1),
        (0.0, 100.0, "k-wait", 2),
        (40.0, 60.0, "k-mma", 2),
    ]
    root = ElementTree.fromstring(overview(spans, 3, 100.0, "all"))
    found = {(box.get("y"), box.get("class")): (box.get("x"), box.get("width")) for box in root.iter("rect")}
    assert found["0", "k-async"] == ("0", "160") and found["0", "k-compute"] == ("160", "160")
    assert found["1", "k-mma"] == ("128", "64") and {y for y, _ in found} == {"0", "1"}
    assert root.get("preserveAspectRatio") == "none" and root.get("aria-label") == "all"


def test_nothing_has_an_empty_overview() -> None:
    assert "<rect" not in overview([(0.0, 0.0, "k-wait", 1)], 1, 0.0, "")


def test_rows_that_are_alike_are_one_in_the_overview() -> None:
    root = ElementTree.fromstring(overview([(0.0, 1.0, "k-mma", 0b1011)], 4, 1.0, ""))
    assert [(box.get("y"), box.get("height")) for box in root.iter("rect")] == [("0", "2"), ("3", "1")]


def lines_shown(text: str, numbers: set[int], tmp_path: Path) -> list[int]:
    path = tmp_path / "kernel.py"
    path.write_text(text)
    lines = [Line(location=SourceLocation(str(path), number, "k"), instructions=Counter(fma=1)) for number in numbers]
    launch = Launch("k", (1, 1, 1), (32, 1, 1), "sm_90a", 1, 1, 0, lines=lines)
    page = as_html([LaunchReport(launch, find_gpu("H200"))])
    return [int(n) for n in re.findall(r'<td class="number">(\d+)</td>', page)]


def test_lines_around_end_with_the_function(tmp_path: Path) -> None:
    """Neither the next function nor a blank line next to a gap or at an end is shown."""
    text = "import x\n\n\ndef a():\n    one\n\n    two\n\ndef b():\n" + "    pass\n" * 6 + "    three\n"
    assert lines_shown(text, {5, 7}, tmp_path) == [4, 5, 6, 7]
    assert lines_shown(text, {7, 16}, tmp_path) == [5, 6, 7, 14, 15, 16]


def test_lines_keep_their_indentation_where_they_go_on(page: Path) -> None:
    """The style indents, so that what does not fit stands further in than its line."""
    assert '<td class="code" style="--in: 4">tid = tw.thread_idx.x</td>' in page.read_text()


def test_the_roof_of_a_unit_close_to_that_of_the_mix_has_no_label_of_its_own() -> None:
    each = launch_of({"tensor bfloat16": 10**9, "float32": 10**6}, touched=32)
    texts = [text.text or "" for text in ElementTree.fromstring(pictures.roofline(each.bounds)).iter("text")]
    assert sum("989" in text or "990" in text for text in texts) == 1


def test_the_page_speaks_of_a_ring_where_there_is_one() -> None:
    for wavefronts in (0, 100, 10**3, 10**7):
        page = as_html([launch_of({"float32": 10**6}, wavefronts=wavefronts)])
        assert ("The ring" in page) == ('class="ring"' in page)

    alone = launch_of({"float32": 10**9})
    seconds = 10**9 / alone.bounds.attainable
    close, nearly = (
        launch_of({"float32": 10**9}, wavefronts=round(share * seconds * alone.gpu.shared_wavefronts))
        for share in (1.1, 1.002)
    )
    assert nearly.bounds.reachable < nearly.bounds.attainable and "The ring" not in as_html([nearly])
    ring, point = map(int, re.findall(r'r="(\d+)" class="(?:ring|point)"', as_html([close])))
    assert ring > point  # where they nearly meet, the ring is around the point


def launch_of(operations: dict[str, int], touched: int = 4096, wavefronts: int = 0) -> LaunchReport:
    line = Line(shared_requests=wavefronts, shared_wavefronts=wavefronts, operations=Counter(operations))
    launch = Launch("k", (1, 1, 1), (32, 1, 1), "sm_90a", 1, 1, 0, lines=[line], touched_bytes=touched)
    return LaunchReport(launch, find_gpu("H200"))


def heights(each: LaunchReport) -> dict[str, float]:
    root = ElementTree.fromstring(pictures.roofline(each.bounds))
    return {circle.get("class", ""): float(circle.get("cy", "")) for circle in root.iter("circle")}


@pytest.mark.parametrize("wavefronts", [0, 10**3, 10**7])
def test_the_point_is_where_all_limits_allow_it(wavefronts: int) -> None:
    """A kernel that shared memory holds back does not stand on the roof of arithmetic and DRAM."""
    each = launch_of({"float32": 10**6}, wavefronts=wavefronts)
    bounds, found = each.bounds, heights(each)
    assert bounds.longest is not None and bounds.reachable == pytest.approx(10**6 / bounds.longest.seconds)
    if bounds.longest.name == "shared memory":
        assert bounds.reachable < bounds.attainable and found["point"] > found["ring"] + 1
        assert "shared memory" in roofline_text(bounds)
    else:
        assert bounds.reachable == pytest.approx(bounds.attainable) and set(found) == {"point"}


def test_the_roof_of_a_mix_of_units_is_no_lower_than_its_limits_allow() -> None:
    for operations in ({"float32": 10**9, "float64": 10**9}, {"tensor bfloat16": 10**9, "float32": 10**6}):
        each = launch_of(operations, touched=32)
        assert each.bounds.reachable == pytest.approx(each.bounds.attainable)
        names = [text.text or "" for text in ElementTree.fromstring(pictures.roofline(each.bounds)).iter("text")]
        assert any(name.startswith("this mix") for name in names)
        places = sorted(
            float(text.get("y", ""))
            for text in ElementTree.fromstring(pictures.roofline(each.bounds)).iter("text")
            if "flop/s" in (text.text or "")
        )
        assert all(b - a >= 12 for a, b in pairwise(places))


@pytest.mark.parametrize(
    ("operations", "touched", "reason"),
    [
        ({}, 4096, "counts floating-point arithmetic and matrix products, and the launch has none"),
        ({"float32": 64}, 0, "nothing from or to DRAM"),
        ({}, 0, "counts floating-point"),
    ],
)
def test_a_launch_without_a_point_says_why(operations: dict[str, int], touched: int, reason: str) -> None:
    each = launch_of(operations, touched)
    assert heights(each) == {}
    assert reason in pictures.roofline(each.bounds) and reason in as_text([each]) and reason in as_html([each])
    json.dumps(as_data([each]), allow_nan=False)


def test_a_unit_without_a_rate_has_no_roof() -> None:
    each = launch_of({"float7": 64})
    assert set(heights(each)) == {"point"} and each.bounds.attainable == each.bounds.reachable
    json.dumps(as_data([each]), allow_nan=False)
    assert "float32" not in pictures.roofline(each.bounds)


def test_tabs_of_one_kernel_say_how_they_differ(page: Path) -> None:
    tabs = re.findall(r"<button role=\"tab\".*?</button>", page.read_text())
    assert len(tabs) == len({re.sub(r">\d+ ", ">", tab) for tab in tabs}) == 3
    assert "layout (32,32):(1,32)" in tabs[0] and "layout (32,32):(33,1)" in tabs[1] and "<small>" not in tabs[2]


def test_launches_that_differ_in_their_data_are_told_apart_by_figures() -> None:
    first, second, third = (launch_of({}, wavefronts=w) for w in (32, 64, 64))
    assert differences([first, second]) == ["wavefronts 32", "wavefronts 64"]
    third.launch.arguments = (("n", "3"),)
    second.launch.arguments = first.launch.arguments = (("n", "2"),)
    assert len(set(differences([first, second, third]))) == 3
    assert differences([first]) == [""]


def test_launches_of_other_functions_are_told_apart() -> None:
    """Tabs that said `1 apply`, `2 apply`, `3 apply`: a lambda has its line, and instructions have classes."""

    @tw.kernel
    def apply(x, f: tw.constexpr):
        x[tw.thread_idx.x] = f(x[tw.thread_idx.x])

    x = np.ones(32, np.float32)
    with tw.simulate(profile=True) as run:
        apply[1, 32](x, lambda v: v * 2)
        apply[1, 32](x, lambda v: v + 1)
        for f in (lambda v: -v, lambda v: tw.exp(v)):
            apply[1, 32](x, f)
    line = run.report().launches[0].launch.lines[-1].line
    told = differences(run.report().launches)
    assert len(set(told)) == 4 and all(words.startswith("f lambda at test_page.py:") for words in told)
    assert told[0] == f"f lambda at test_page.py:{line}, float 1" and told[3].endswith(", float 0")


def test_arguments_are_told_in_short(report: Report) -> None:
    told = dict(report.launches[0].launch.arguments)
    assert told == {"dst": "float32[32,32]", "src": "float32[32,32]", "layout": "(32,32):(1,32)"}
    assert report.data["launches"][0]["arguments"] == told  # type: ignore[index]


# --- in a browser -----------------------------------------------------------------------------------------------------

needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as found:
        yield found


@needs_browser
def test_the_page_opens_without_an_error_or_a_request(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.errors == []
    assert [url for url in browser.requests if not url.startswith("data:")] == [page.as_uri()]
    assert browser.value("document.querySelectorAll('section.launch:not([hidden])').length") == 1
    assert browser.value("[...document.querySelectorAll('svg')].every(s => s.getAttribute('aria-label'))")


@needs_browser
def test_keys(browser: Browser, page: Path) -> None:
    browser.open(page)
    shown = "[...document.querySelectorAll('section.launch')].findIndex(s => !s.hidden)"
    for key, expected in (("]", 1), ("]", 2), ("]", 0), ("[", 2), ("[", 1), ("[", 0)):
        browser.press(key)
        assert browser.value(shown) == expected
    line = "document.activeElement.querySelector('td').textContent"
    browser.press("j")
    first = browser.value(line)
    browser.press("j")
    assert int(browser.value(line)) > int(first)
    browser.press("k")
    assert browser.value(line) == first
    detail = "document.activeElement.nextElementSibling.hidden"
    assert browser.value(detail) is True
    browser.press("Enter")
    assert (
        browser.value(detail) is False
        and browser.value("document.activeElement.getAttribute('aria-expanded')") == "true"
    )
    browser.press("Enter")
    assert browser.value(detail) is True
    background = "getComputedStyle(document.body).backgroundColor"
    light = browser.value(background)
    browser.press("t")
    assert browser.value(background) != light
    browser.press("t")
    assert browser.value(background) == light
    browser.press("?")
    assert browser.value("document.querySelector('dialog').open") is True
    browser.press("Escape")
    assert browser.value("document.querySelector('dialog').open") is False
    assert browser.errors == []


@needs_browser
@pytest.mark.parametrize("width", [320, 390, 768, 1200])
def test_no_screen_is_too_narrow(browser: Browser, page: Path, width: int) -> None:
    browser.resize(width, 800)
    browser.open(page)
    for _ in range(3):
        assert browser.value("document.documentElement.scrollWidth") <= width
        browser.press("]")
    assert browser.errors == []
    browser.resize(1200, 900)


@needs_browser
def test_a_telephone_shows_source_maps_and_labels(browser: Browser, page: Path) -> None:
    """Without scrolling sideways: the source, the whole map of banks, and letters of nine pixels and more."""
    browser.resize(390, 800)
    browser.open(page)
    shown = "[...document.querySelectorAll('section:not([hidden]) %s')]"
    outside = shown + ".filter(e => e.scrollWidth > e.clientWidth + 1).length"
    assert browser.value(outside % "div:has(> .listing)") == 0
    assert browser.value(outside % "div:has(> .banks)") == 0
    letters = (
        "Math.min(...[...document.querySelectorAll('section:not([hidden]) svg text')].filter(t => "
        "getComputedStyle(t).display != 'none').map(t => parseFloat(getComputedStyle(t).fontSize) * t.getCTM().a))"
    )
    assert browser.value(letters) >= 9
    code = "[...document.querySelectorAll('section:not([hidden]) td.code')].map(e => e.getBoundingClientRect())"
    assert browser.value(f"{code}.every(r => r.left >= 0 && r.right <= 390 && r.width > 150)")
    named = "[...document.querySelectorAll('section:not([hidden]) td[data-name]')].every(e => e.offsetHeight > 0)"
    assert browser.value(named)
    browser.value("document.querySelector('button.enlarge').click()")
    assert browser.value("document.querySelector('svg.banks').clientWidth") > 800
    browser.resize(1200, 900)


@needs_browser
def test_the_overview_moves_the_timeline(browser: Browser, tmp_path: Path) -> None:
    """A long timeline is scrolled to where its overview is clicked, and the overview says what is seen."""
    events = [Event(step, ("mma", "cp.async")[step % 2], step, 1) for step in range(600)]
    launch = Launch("k", (1, 1, 1), (32, 1, 1), "sm_90a", 1, 1, 0, timelines=[Timeline((0, 0, 0), 1, events)])
    path = tmp_path / "long.html"
    path.write_text(as_html([LaunchReport(launch, find_gpu("H200"))]))
    for width in (390, 1200):
        browser.resize(width, 800)
        browser.open(path)
        assert browser.value("document.documentElement.scrollWidth") <= width
        frame, mark = "document.querySelector('.glance + .scroll')", "document.querySelector('.glance i')"
        seen = browser.value(f"{frame}.clientWidth / {frame}.scrollWidth")
        assert seen < 0.5 and browser.value(f"parseFloat({mark}.style.width)") == pytest.approx(100 * seen, abs=0.1)
        at = "const g = document.querySelector('.glance'), r = g.getBoundingClientRect()"
        click = "g.dispatchEvent(new MouseEvent('click', {clientX: r.left + 0.75 * r.width, bubbles: true}))"
        browser.value(f"(() => {{ {at}; {click}; }})()")
        middle = browser.value(f"({frame}.scrollLeft + {frame}.clientWidth / 2) / {frame}.scrollWidth")
        assert middle == pytest.approx(0.75, abs=0.01)
        names = "document.querySelector('.names').getBoundingClientRect().left"
        assert abs(browser.value(f"{names} - {frame}.getBoundingClientRect().left")) < 3  # stay where they are
    assert browser.errors == []
    browser.resize(1200, 900)


@needs_browser
def test_many_launches_leave_room_for_the_first(browser: Browser, tmp_path: Path) -> None:
    launches = [launch_of({}, wavefronts=32 * (n + 1)) for n in range(40)]
    path = tmp_path / "many.html"
    path.write_text(as_html(launches))
    browser.resize(390, 800)
    browser.open(path)
    assert browser.value("document.querySelector('section:not([hidden])').getBoundingClientRect().top") < 600
    assert "40 launches" in browser.value("document.body.innerText")
    browser.press("[")  # to the last, which the list then shows
    tab = "document.querySelector('[aria-selected=true]').getBoundingClientRect()"
    nav = "document.querySelector('nav').getBoundingClientRect()"
    assert browser.value(f"{tab}.top >= {nav}.top - 1 && {tab}.bottom <= {nav}.bottom + 1")
    browser.resize(1200, 900)


@needs_browser
def test_deep_lines_can_be_read_on_a_telephone(browser: Browser, tmp_path: Path) -> None:
    """A line that is indented by seven levels has most of the width, and what goes on below is further in."""
    path = tmp_path / "kernel.py"
    path.write_text("\n" * 9 + " " * 28 + "tw.copy(tw.atoms.SM90_TMA_LOAD, gA, sA[:, :, stage], barrier=full)\n")
    lines = [Line(location=SourceLocation(str(path), 10, "k"), instructions=Counter(fma=1))]
    launch = Launch("k", (1, 1, 1), (32, 1, 1), "sm_90a", 1, 1, 0, lines=lines)
    report = tmp_path / "deep.html"
    report.write_text(as_html([LaunchReport(launch, find_gpu("H200"))]))
    browser.resize(390, 800)
    browser.open(report)
    rects = (
        "(() => { const c = document.querySelector('td.code'), r = document.createRange(); r.selectNodeContents(c);"
        " return [...r.getClientRects()].map(x => [x.left, x.right]); })()"
    )
    first, *others = browser.value(rects)
    assert 100 < first[0] < 200 and first[1] - first[0] > 150 and all(left > first[0] for left, _ in others)
    browser.resize(1200, 900)


@needs_browser
def test_the_dark_scheme_of_the_system_is_taken(page: Path) -> None:
    with Browser(dark=True) as dark:
        dark.open(page)
        colour = dark.value("getComputedStyle(document.body).backgroundColor")
        assert max(int(n) for n in re.findall(r"\d+", colour)[:3]) < 60
