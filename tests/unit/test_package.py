"""The package as a whole: its public names, and what importing it costs."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tilewright as tw

PACKAGE = Path(tw.__file__).parent
EXAMPLES = PACKAGE.parent.parent / "examples"
ROOT = Path(__file__).parents[2]


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("name", dir(tw))
@pytest.mark.spread(6)
def test_public_name_resolves_and_is_documented(name: str) -> None:
    value = getattr(tw, name)
    if name == "__version__" or isinstance(value, tw.DType):
        return
    # Constants such as tw.thread_idx carry the docstring of their class.
    assert inspect.getdoc(value), f"tw.{name} has no docstring"


def test_stub_names_what_the_package_exports() -> None:
    tree = ast.parse((PACKAGE / "__init__.pyi").read_text())
    stub = {
        (node.module, alias.name)
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }
    table = {(f"tilewright.{module}", name) for module, names in tw._EXPORTS.items() for name in names}
    table |= {("tilewright", name) for name in (*tw._SUBMODULES, *tw._OPTIONAL)}
    table.add(("tilewright._version", "__version__"))
    assert stub == table


def test_no_public_name_is_that_of_a_submodule() -> None:
    """Importing a submodule binds its name in the package, which would replace a function called the same."""
    modules = {module.name for module in pkgutil.iter_modules([str(PACKAGE)])}
    assert not modules & set(tw._MODULE_OF)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'tilewright' has no attribute 'no_such_name'") as caught:
        getattr(tw, "no_such_name")  # noqa: B009
    assert (caught.value.name, caught.value.obj) == ("no_such_name", tw)  # Python suggests another by them


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tracebacks cannot be shortened before Python 3.11")
def test_a_misspelt_name_shows_no_frame_of_ours() -> None:
    code = "import tilewright as tw\ntw.sharde"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr
    assert str(PACKAGE) not in printed
    assert "has no attribute 'sharde'. Did you mean: 'shared'?" in printed


def test_import_is_fast() -> None:
    # What takes time is modules: 7 of them are loaded, and those behind public names when they are asked for.
    code = "import sys; before = len(sys.modules); import tilewright; print(len(sys.modules) - before)"
    assert int(run(code)) <= 12


@pytest.mark.parametrize("module", ["tilewright", "tilewright.layout"])
def test_import_brings_neither_numpy_nor_backends(module: str) -> None:
    loaded = run(f"import sys, {module}; print(*sys.modules)").split()
    heavy = {"numpy", "ml_dtypes", "cuda", "rich", "click"}
    layers = ("tilewright.backends", "tilewright.runtime", "tilewright.trace", "tilewright.frontend", "tilewright.ir")
    assert [name for name in loaded if name in heavy or name.startswith(layers)] == []


def test_all_modules_import_without_a_gpu() -> None:
    missing = tuple(f"tilewright.{name}" for name in tw._OPTIONAL if importlib.util.find_spec(name) is None)
    for module in pkgutil.walk_packages([str(PACKAGE)], "tilewright.", onerror=lambda name: None):
        if not module.name.startswith(missing):
            importlib.import_module(module.name)


def test_what_needs_a_library_says_so() -> None:
    code = "import sys; sys.modules['torch'] = None; import tilewright as tw; 'torch' in dir(tw) or tw.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ModuleNotFoundError: tw.torch needs PyTorch, which is not installed: pip install torch" in done.stderr


def test_a_star_import_brings_no_torch() -> None:
    assert run("from tilewright import *; import sys; print('torch' in sys.modules or 'torch' in globals())") == "False"


@pytest.mark.skipif(not EXAMPLES.is_dir(), reason="not a checkout")
def test_no_example_hides_a_standard_module() -> None:
    """`python examples/copy.py` puts examples/ first on the path, where copy.py would be found for `import copy`."""
    assert [path.name for path in EXAMPLES.glob("*.py") if path.stem in sys.stdlib_module_names] == []


def test_extras_bring_what_they_are_for() -> None:
    """Drawings need the typesetter only; plots of measurements are an extra of their own."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    draw, plot = (re.search(rf"^{name} = \[(.*?)\]", text, re.DOTALL | re.MULTILINE) for name in ("draw", "plot"))
    assert draw is not None and "typst" in draw[1] and "matplotlib" not in draw[1]
    assert plot is not None and "matplotlib" in plot[1]


def test_the_citation_names_this_version() -> None:
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"version: {tw.__version__}\n" in text and "license: Apache-2.0\n" in text
