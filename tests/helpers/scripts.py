"""Files of Python that are in no package, as modules: scripts of the documentation, and what tests write."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from pathlib import Path
from types import ModuleType

_numbers = itertools.count()


def load_script(path: Path) -> ModuleType:
    """Run a file as a module, anew with each call.

    The module gets a name that no other has, so that one file may be two modules, and none hides a module that is
    installed. It is in `sys.modules` while it runs and after, because dataclasses and pickle look for it there.
    """
    spec = importlib.util.spec_from_file_location(f"{path.stem}_{next(_numbers)}", path)
    assert spec is not None and spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module
