"""What `tw.matmul.tune` found: the kernel that was fastest for a problem on a GPU, asked for before the model is.

A find holds for one device, CUDA driver, release of Tilewright and problem. It is looked up where the first call of a
kind is planned, in this process, then in the store, then among those that come with the package (`finds.json`, found on
an H200 for products that people have). It counts where it is still among the candidates.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright._version import __version__
from tilewright.errors import TuningError
from tilewright.frames import warn_at
from tilewright.kernels.family import Candidate
from tilewright.kernels.problem import Problem
from tilewright.runtime import driver
from tilewright.runtime.arrays import Device
from tilewright.runtime.folders import find_folder
from tilewright.runtime.result_rows import STORE_FILE, Place, Winner

if TYPE_CHECKING:
    from tilewright.runtime.result_store import Store

_KERNEL = f"tw.matmul {__version__}"

_known: dict[Place, str] = {}  # finds of this process
_read: dict[Place, str | None] = {}  # what the store said


class _Forced(threading.local):
    text: str | None = None


_forced = _Forced()


def is_forced() -> bool:
    """Say whether this thread's calls are planned with a candidate that `forcing` names."""
    return _forced.text is not None


def text_of(candidate: Candidate) -> str:
    """Return what a candidate is called in the store: the family, and all of its configuration."""
    return f"{candidate.family.name}: {candidate.configuration!r}"


def place_of(problem: Problem, ordinal: int) -> Place:
    """Return what a find for a problem on a CUDA device holds for.

    Epilogues count by their names and by the types of the elements that they take, for a function has no text that is
    the same in each process: two lambdas of the same types share a find.
    """
    properties = driver.device_properties(ordinal)
    return Place(properties.name, "CUDA {}.{}".format(*properties.driver_version), _KERNEL, _key(problem))


def winner_among(candidates: Sequence[Candidate], problem: Problem, device: Device) -> Candidate | None:
    """Return the candidate that was found to be fastest for a problem on a device, None where nothing is known."""
    text = _forced.text
    if text is None and not isinstance(device, str):
        place = place_of(problem, device)
        text = _known.get(place) or _stored(place) or _shipped().get(place.device, {}).get(place.key)
    if text is None:
        return None
    return next((c for c in candidates if c.prediction is not None and text_of(c) == text), None)


def remember(place: Place, candidate: Candidate) -> None:
    """Let calls of this process take a candidate."""
    _known[place] = text_of(candidate)


def keep(
    store: Store, place: Place, candidate: Candidate, milliseconds: float, trials: list[dict[str, object]]
) -> None:
    """Let calls of other processes take a candidate too."""
    store.keep(place, Winner(text_of(candidate), milliseconds), name="tw.matmul", trials=trials)
    _read.pop(place, None)


def forget() -> None:
    """Forget what this process found and read."""
    _known.clear()
    _read.clear()


@contextlib.contextmanager
def forcing(candidate: Candidate) -> Iterator[None]:
    """Plan this thread's calls in the body of a `with` with a candidate, where it is one of theirs."""
    before, _forced.text = _forced.text, text_of(candidate)
    try:
        yield
    finally:
        _forced.text = before


@cache
def _shipped() -> dict[str, dict[str, str]]:
    """Return what was found before by `benchmarks/tuned.py`, by device and problem; the driver does not count."""
    text = Path(__file__).with_name("finds.json").read_text(encoding="utf-8")
    found: dict[str, dict[str, str]] = json.loads(text)
    return found


def _stored(place: Place) -> str | None:
    """Return what the store in the cache folder knows; one that cannot be read is told of, once, and passed over."""
    if place not in _read:
        _read[place] = None
        # Most have tuned nothing: without the file, SQLite is not even imported.
        if (find_folder().path / STORE_FILE).exists():
            from tilewright.runtime.result_store import Store

            try:
                found = Store().find(place)
            except TuningError as error:
                warn_at(f"{error.summary}; tw.matmul chooses by its model")
            else:
                _read[place] = None if found is None else found.config
    return _read[place]


def _key(problem: Problem) -> str:
    """Return a problem as text that is the same in each process."""
    p = problem
    parts = [
        f"{p.batch} x {p.m} x {p.n} x {p.k}",
        *(f"{x.dtype} {x.major} {x.alignment}/{x.line}" for x in (p.a, p.b, p.d)),
        f"{p.compute} to {p.accumulator}",
        f"c {p.c}, bias {p.bias}, elements {', '.join(map(str, p.elements))}",
        f"epilogue {p.epilogue}",
        f"scales {', '.join(map(str, p.scales))}",
        *(f"{x}{', boxed' * x.boxed}" for x in p.blocks),
        *["sums of tensor cores"] * p.sums_stay,
        f"weights {p.weights}",
        f"parts {p.parts}",
        *(f"also {x}" for x in p.further),
    ]
    return "; ".join(parts)
