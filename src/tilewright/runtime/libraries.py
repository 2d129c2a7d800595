"""Find NVIDIA's shared libraries and programs in the wheels that carry them.

The wheels install below `site-packages/nvidia/<component>/{lib,bin}`; the component's name changes
between CUDA releases (`cuda_nvrtc`, `cu13`), so the search is by file name.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from pathlib import Path

INSTALL = 'pip install "tilewright[cuda]"'

WINDOWS = sys.platform == "win32"


def wheel_files(folder: str, pattern: str) -> list[Path]:
    """Return the files matching `pattern` in `nvidia/*/<folder>` of every import path, newest version first."""
    spec = importlib.util.find_spec("nvidia")
    roots = [] if spec is None else list(spec.submodule_search_locations or ())
    found = [path for root in roots for path in Path(root).glob(f"*/{folder}/{pattern}")]
    return sorted(found, key=lambda path: version_of(path.name), reverse=True)


def version_of(file_name: str) -> tuple[int, ...]:
    """Return the numbers in a file's name, to sort by.

    >>> version_of("libnvrtc.so.13") > version_of("libnvrtc.so.12")
    True
    """
    return tuple(int(number) for number in re.findall(r"\d+", file_name))


def find_program(name: str) -> Path | None:
    """Return the path of an NVIDIA program: from a wheel, else from PATH, else None."""
    file_name = f"{name}.exe" if WINDOWS else name
    for path in wheel_files("bin", file_name):
        return path
    on_path = shutil.which(name)
    return None if on_path is None else Path(on_path)
