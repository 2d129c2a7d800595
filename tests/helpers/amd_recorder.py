"""A plugin of pytest: lowers every kernel that the tests launch for an AMD target, and leaves running them out.

At the end it writes what came of it, as JSON, to the file that the environment's TILEWRIGHT_AMD_RECORD names: the HIP
texts with their names, and the refusals.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

import tilewright.launch
from tilewright.arch import Arch
from tilewright.backends import sim
from tilewright.compile import Lowered
from tilewright.errors import ArgumentError, LanguageError, LayoutError, TilewrightError

ARCH = "gfx90a"
_texts: dict[str, str] = {}
_refusals: set[str] = set()
_faults: set[str] = set()
_specialise = tilewright.launch.specialise


def _recording(build: Callable[[Arch, bool], Lowered], *rest: Any) -> Any:
    try:
        source = build(Arch.parse(ARCH), False).source
        _texts[source.text] = source.name
    except (ArgumentError, LanguageError, LayoutError) as error:
        _refusals.add(error.summary)
    except TilewrightError as error:
        _faults.add(str(error))
    return _specialise(build, *rest)


def pytest_configure(config: pytest.Config) -> None:
    tilewright.launch.specialise = _recording
    sim.execute = lambda *args, **options: None


def pytest_sessionfinish(session: pytest.Session) -> None:
    found = {"texts": list(_texts.items()), "refusals": sorted(_refusals), "faults": sorted(_faults)}
    with open(os.environ["TILEWRIGHT_AMD_RECORD"], "w", encoding="utf-8") as file:
        json.dump(found, file)
