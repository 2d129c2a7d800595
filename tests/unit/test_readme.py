"""What the README shows runs as it stands, and says what really comes of it."""

from __future__ import annotations

import linecache
import re
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw

README = Path(__file__).parents[2] / "README.md"
PAGE = README.read_text(encoding="utf-8")


PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE, re.S | re.M)


def run(code: str, names: dict[str, Any], path: str = "readme.py") -> None:
    """Run code of the page as that of a file, which error messages quote."""
    linecache.cache[path] = (len(code), None, code.splitlines(keepends=True), path)
    exec(compile(code, path, "exec"), names)


def test_its_programs_run_and_its_error_is_the_one_that_comes() -> None:
    kernel, product = PROGRAMS
    (message,) = re.findall(r"^```text\n(.*?)^```", PAGE, re.S | re.M)
    names: dict[str, Any] = {"__name__": "readme"}
    with pytest.raises(tw.CheckError) as caught:
        run(kernel, names, "transpose.py")
    assert "".join(traceback.format_exception_only(caught.value)) == message
    run(product, names)
    expected = np.maximum(names["x"] @ names["weight"].T, 0) * 0.5
    np.testing.assert_allclose(names["y"], expected, rtol=1e-4, atol=1e-5)


def test_the_kernel_is_right_with_the_barrier_that_the_page_names() -> None:
    loop = "    for k in range(0, 32, 8):\n        dst"
    names: dict[str, Any] = {"__name__": "readme"}
    run(PROGRAMS[0].replace(loop, f"    tw.sync_threads()\n{loop}"), names)
    np.testing.assert_array_equal(names["dst"], names["src"].T)
    array = tw.spec(tw.float32, (128, 128))
    remarks = tw.check(names["transpose"], (array, array, tw.Layout((32, 32), (32, 1))), block=(32, 8))
    assert any(remark.kind == "bank-conflict" and remark.suggestion is not None for remark in remarks)


def test_it_fits_three_screens() -> None:
    assert len(PAGE.splitlines()) <= 120


def test_its_links_lead_somewhere() -> None:
    docs = README.parent / "docs"
    for page in (README, *(page for page in docs.rglob("*.md") if docs / "reference" not in page.parents)):
        text = re.sub(r"^(```|~~~).*?^\1", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
        links = re.findall(r"\]\((?!https?:|#)([^()#\s]+)[#)]", re.sub(r"`[^`\n]*`", "", text))
        # Building the site writes docs/reference.
        links = [link for link in links if (page.parent / link).resolve().parent != docs / "reference"]
        missing = [link for link in links if not (page.parent / link).exists()]
        assert missing == [], page
