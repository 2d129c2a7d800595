"""Files, notebooks and consoles: what each gets, and what is said where something is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import tilewright as tw
from tilewright import Layout, draw
from tilewright.atoms import UniversalCopy, UniversalFMA
from tilewright.draw import model
from tilewright.errors import ArgumentError, TilewrightError
from tilewright.layout import DynamicInt

SHOWN: dict[str, Any] = {
    "layout": Layout(((2, 2), 3)),
    "swizzle": tw.Swizzle(2, 0, 2),
    "composed layout": tw.composition(tw.Swizzle(2, 0, 2), Layout((4, 4))),
    "tensor": tw.tensor(np.arange(4).reshape(2, 2)),
    "tiled copy": tw.make_tiled_copy(UniversalCopy(32), Layout((2, 2))),
    "tiled mma": tw.make_tiled_mma(UniversalFMA(tw.float32), Layout((2, 2))),
    "banks": draw.banks((4, 4), access=[0, 1]),
    "tiling": draw.tiling((4, 4), lambda t: tw.local_tile(t, (2, 2), (1, 1))),
    "cut": draw.picture(Layout((100, 100)), limit=(4, 4)),
}


@pytest.mark.parametrize("name", SHOWN)
def test_notebooks_show_a_picture(name: str) -> None:
    text = SHOWN[name]._repr_svg_()
    root = ElementTree.fromstring(text)
    width, height = float(root.attrib["viewBox"].split()[2]), float(root.attrib["viewBox"].split()[3])
    for element in root:
        for key, most in (("x", width), ("x1", width), ("x2", width), ("y", height), ("y1", height), ("y2", height)):
            assert 0 <= float(element.attrib.get(key, 0)) <= most


@pytest.mark.parametrize("name", SHOWN)
def test_typst_compiles_it(name: str) -> None:
    pytest.importorskip("typst")
    from tilewright.draw.printing import compile_typst

    assert b"<svg" in compile_typst(draw.typst(SHOWN[name]), "svg")


def test_rich_consoles_show_a_table() -> None:
    from io import StringIO

    from rich.console import Console

    out = StringIO()
    Console(file=out, width=40).print(Layout((2, 2)), Layout((1, 1)))
    assert "1 │ 1 3" in out.getvalue()


def test_values_without_a_picture_fall_back_to_text() -> None:
    class Symbol(DynamicInt):
        def __repr__(self) -> str:
            return "n"

    layout = Layout((Symbol(), 4), (1, 1))
    assert layout._repr_svg_() is None
    assert str(layout.__rich__()) == repr(layout)


def test_layouts_alone_import_no_drawings() -> None:
    code = "import sys, tilewright.layout; print([m for m in sys.modules if m.startswith('tilewright.draw')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize(("ending", "start"), [("svg", b"<svg"), ("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_save_compiles(tmp_path: Path, ending: str, start: bytes) -> None:
    pytest.importorskip("typst")
    path = draw.save(Layout((4, 8)), tmp_path / f"layout.{ending}", title="a title")
    assert path.read_bytes().startswith(start)


def test_save_writes_typst_source_without_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "typst", None)
    path = draw.save(Layout((4, 8)), str(tmp_path / "layout.typ"))
    assert path.read_text(encoding="utf-8") == draw.typst(Layout((4, 8)))
    with pytest.raises(TilewrightError) as caught:
        draw.save(Layout((4, 8)), tmp_path / "layout.png")
    assert str(caught.value) == (
        "the Typst compiler is not installed, which writes .png files\n"
        '  help: pip install "tilewright[draw]", or pip install typst; .typ files need neither'
    )


def test_save_refuses_other_endings(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"as \.svg, \.png, \.pdf or \.typ, not 'layout\.gif'"):
        draw.save(Layout((4, 8)), tmp_path / "layout.gif")


def test_typst_source_is_self_contained_and_takes_any_title() -> None:
    source = draw.typst(Layout((2, 2)), title='#import "x" \\ <&>')
    assert "@preview" not in source
    assert '"#import \\"x\\" \\\\ <&>"' in source
    assert "#set page" not in draw.typst(Layout((2, 2)), page=False)
    assert "#import &quot;x&quot; \\ &lt;&amp;&gt;" in draw.svg(Layout((2, 2)), title='#import "x" \\ <&>')


def test_print_typst(capsys: pytest.CaptureFixture[str]) -> None:
    tw.print_typst(Layout((2, 2)))
    assert capsys.readouterr().out == draw.typst(Layout((2, 2)))


def test_labels_can_be_read_on_every_fill() -> None:
    fills = [model.categorical(i) for i in range(32)] + [model.ramp(i / 10) for i in range(11)]
    fills += [model.tint(c, i) for c in (model.ALARM, model.CALM) for i in range(4)]
    assert min(model.contrast(model.INK, fill) for fill in fills) > 7  # WCAG AAA
    assert model.contrast(model.PALE_INK, model.PAPER) > 4.5  # WCAG AA
    assert len({model.categorical(i) for i in range(32)}) == 32


def test_neighbouring_threads_differ_in_grey() -> None:
    def grey(index: int) -> float:
        return model.luminance(model.categorical(index)) ** (1 / 3)

    assert min(abs(grey(i) - grey(i + 1)) for i in range(7)) > 0.05
