"""A kernel is made from the source that Python compiled, or refused: edits between import and first launch."""

from __future__ import annotations

import itertools
import linecache
import os
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from tests.helpers.scripts import load_script

import tilewright as tw

_numbers = itertools.count()

TEXT = """\
import numpy as np
import tilewright as tw
from tilewright import Layout

SCALE = 2.0

def plain(x):
    return x + 1.0

@tw.function
def helper(x):
    if x > 3.0:
        return x * SCALE
    return plain(x)

@tw.kernel
def fill(x):
    for j in tw.range(2):
        x[tw.thread_idx.x] = helper(5.0) + j

class Work:
    amount = 3.0
    def __init__(self):
        self.__private = 4.0
    @tw.kernel
    def method(self, x):
        x[tw.thread_idx.x] = self.amount + self.__private
    def made(self, value):
        scale = value
        @tw.kernel
        def inner(x):
            x[tw.thread_idx.x] = sum([scale * n for n in (1, 2)]) + self.__private
        return inner
    def __hash__(self):
        return 1
    def __eq__(self, other):
        return type(other) is Work

def twice(function):
    return tw.kernel(function)

def factory(value, flag):
    if flag:
        @twice
        def f(x):
            x[tw.thread_idx.x] = value
    else:
        @twice
        def f(x):
            x[tw.thread_idx.x] = -value
    return f

@tw.kernel
def annotated(x):
    acc: tw.float32 = 1.5
    x[tw.thread_idx.x] = acc
"""


def imported(folder: Path, text: str = TEXT) -> types.ModuleType:
    path = folder / f"edited_{next(_numbers)}.py"
    path.write_text(text)
    return load_script(path)


def edit(module: types.ModuleType, old: str, new: str) -> None:
    assert module.__file__ is not None
    path = Path(module.__file__)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def result(kernel: tw.Kernel) -> float:
    x = np.zeros(32, np.float32)
    kernel[1, 32](x)
    return float(x[7])


def everything(module: types.ModuleType) -> list[float]:
    kernels = [module.fill, module.Work().method, module.Work().made(3.0), module.annotated]
    return [result(k) for k in (*kernels, module.factory(5.0, True), module.factory(5.0, False))]


EXPECTED = [11.0, 7.0, 13.0, 1.5, 5.0, -5.0]


def test_sources_as_they_were_compiled(tmp_path: Path) -> None:
    assert everything(imported(tmp_path)) == EXPECTED
    assert everything(imported(tmp_path, "from __future__ import annotations\n" + TEXT)) == EXPECTED
    assert everything(imported(tmp_path, TEXT.replace("    ", "\t"))) == EXPECTED


def test_lines_above_that_shift_the_rest(tmp_path: Path) -> None:
    for new in ("import os\n\n\n# a comment\nimport numpy as np\n", "import numpy as np\n\n\n\n"):
        module = imported(tmp_path)
        del module.annotated
        edit(module, "import numpy as np\n", new)
        source = module.fill.source(tw.spec(tw.float32, (32,)))
        line = next(
            n for n, text in enumerate(Path(module.__file__).read_text().split("\n"), 1) if "helper(5.0)" in text
        )
        assert f"{Path(module.__file__).name}:{line}: x[tw.thread_idx.x] = helper(5.0) + j" in source
        kernels = [module.fill, module.Work().method, module.Work().made(3.0), module.factory(5.0, False)]
        assert [result(k) for k in kernels] == [11.0, 7.0, 13.0, -5.0]


EDITS = {
    "a number": ("helper(5.0) + j", "helper(5.0) + j + 0 * 2", "fill"),
    "a sign": ("helper(5.0)", "helper(-5.0)", "fill"),
    "a name": ("helper(5.0) + j", "plain(5.0) + j", "fill"),
    "an attribute": ("tw.thread_idx.x] = helper", "tw.thread_idx.y] = helper", "fill"),
    "a bound": ("tw.range(2)", "tw.range(3)", "fill"),
    "a type of constant": ("helper(5.0)", "helper(5)", "fill"),
    "a parameter": ("def fill(x)", "def fill(x, y=None)", "fill"),
    "a line more": (
        "        x[tw.thread_idx.x] = helper",
        "        x[0] = 1.0\n        x[tw.thread_idx.x] = helper",
        "fill",
    ),
    "its name": ("def fill", "def full", "fill"),
    "all of it": (TEXT, "", "fill"),
    "what is not Python": ("import numpy as np", "def ((\n", "fill"),
    "the function that it calls": ("return x * SCALE", "return x / SCALE", "fill"),
    "a method": ("self.amount + self.__private", "self.amount - self.__private", "method"),
    "an inner kernel": ("sum([scale * n", "sum([scale + n", "inner"),
    "a type of a variable": ("acc: tw.float32", "acc: tw.float64", "annotated"),
    "a type of a variable, and lines": ("@tw.kernel\ndef annotated", "\n@tw.kernel\ndef annotated", "annotated"),
}


@pytest.mark.parametrize(("old", "new", "name"), EDITS.values(), ids=EDITS)
def test_an_edited_kernel_is_refused(old: str, new: str, name: str, tmp_path: Path) -> None:
    module = imported(tmp_path)
    kernels = {"fill": module.fill, "annotated": module.annotated, "method": module.Work().method}
    kernel = module.Work().made(3.0) if name == "inner" else kernels[name]
    edit(module, old, new)
    with pytest.raises(tw.LanguageError, match="is not what Python compiled|cannot be read"):
        result(kernel)


def test_the_module_imported_again(tmp_path: Path) -> None:
    module = imported(tmp_path)
    edit(module, "helper(5.0)", "helper(60.0)")
    with pytest.raises(tw.LanguageError):
        result(module.fill)
    assert result(load_script(Path(module.__file__)).fill) == 121.0


def test_the_message(tmp_path: Path) -> None:
    module = imported(tmp_path)
    edit(module, "helper(5.0)", "helper(6.0)")
    with pytest.raises(tw.LanguageError) as caught:
        result(module.fill)
    assert str(caught.value) == (
        "the source of 'fill' is not what Python compiled\n"
        f"  {module.__file__}, line 16: the file was edited after the module was imported, "
        "or the function was made from other text\n"
        "  help: import the module again or restart Python; a kernel is made from its source when it is first launched"
    )


def test_one_edit_leaves_the_other_kernels(tmp_path: Path) -> None:
    module = imported(tmp_path)
    inner = module.Work().made(3.0)
    edit(module, "helper(5.0)", "helper(6.0)")
    assert result(module.Work().method) == 7.0 and result(inner) == 13.0


def test_an_edit_after_the_first_launch_changes_nothing(tmp_path: Path) -> None:
    module = imported(tmp_path)
    assert result(module.fill) == 11.0
    edit(module, "helper(5.0)", "helper(6.0)")
    assert result(module.fill) == 11.0
    module.fill[1, 32](np.zeros(32, np.float64))  # another specialisation of the same code


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    module = imported(tmp_path)
    os.remove(module.__file__)
    with pytest.raises(tw.LanguageError) as caught:
        result(module.fill)
    assert str(caught.value) == (
        "the source of 'fill' cannot be read, and a kernel is made from its source\n"
        f"  {module.__file__} does not exist any more\n"
        "  help: keep the file until the kernel was launched"
    )


def test_a_stale_linecache_is_not_believed(tmp_path: Path) -> None:
    module = imported(tmp_path)
    file = module.__file__
    linecache.getlines(file)
    edit(module, "helper(5.0)", "helper(60.0)")  # of another size, so that the cache's check sees it
    with pytest.raises(tw.LanguageError, match="is not what Python compiled"):
        result(module.fill)
    again = load_script(Path(file))
    assert result(again.fill) == 121.0


def test_text_of_exec_with_a_name_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "other.py"
    path.write_text(TEXT.replace("helper(5.0)", "helper(9.0)"))
    names: dict[str, object] = {"__name__": "other"}
    exec(compile(TEXT, str(path), "exec"), names)
    with pytest.raises(tw.LanguageError, match="is not what Python compiled"):
        result(names["fill"])


@pytest.mark.parametrize("separate", [False, True])
def test_cells_of_a_notebook(separate: bool) -> None:
    """A cell's text is in linecache under a name that is not a file; imports may stand in another cell."""
    names: dict[str, object] = {"__name__": "__main__"}
    head, body = TEXT.split("SCALE = 2.0", 1)
    cells = [head, "SCALE = 2.0" + body] if separate else [TEXT]
    for cell in cells:
        file = f"<cell {next(_numbers)}>"
        linecache.cache[file] = (len(cell), None, cell.splitlines(True), file)
        exec(compile(cell, file, "exec"), names)
    module = types.SimpleNamespace(**names)
    assert everything(module) == EXPECTED


def test_a_lambda_and_a_coroutine_are_no_kernels() -> None:
    with pytest.raises(tw.LanguageError, match="is not a def statement of its own"):
        tw.kernel(lambda x: None)[1, 1](np.zeros(1, np.float32))

    async def f(x):
        x[0] = 1.0

    with pytest.raises(tw.LanguageError, match="is not a def statement of its own"):
        tw.kernel(f)[1, 1](np.zeros(1, np.float32))


def test_a_module_that_an_import_hook_wrote() -> None:
    """pytest rewrites the assertions of this very module, so the code of the kernel is not its source's."""

    @tw.kernel
    def asserting(x):
        i = tw.thread_idx.x
        assert i < 64, "many"
        x[i] = 3.0

    assert result(asserting) == 3.0


def test_two_kernels_of_one_name_and_text(tmp_path: Path) -> None:
    text = "import tilewright as tw\ndef make(v):\n    @tw.kernel\n    def k(x):\n        x[tw.thread_idx.x] = v\n    return k\n"
    module = imported(tmp_path, text + text.replace("make", "again").replace("import tilewright as tw\n", ""))
    edit(module, "import tilewright as tw\n", "import tilewright as tw\n\n\n")
    assert [result(module.make(1.0)), result(module.again(2.0))] == [1.0, 2.0]


def test_a_function_inside_of_a_kernel(tmp_path: Path) -> None:
    """It is rewritten with the kernel, and not read again when the kernel is traced anew."""
    text = """\
import tilewright as tw
@tw.kernel
def outer(x):
    @tw.function
    def inner(i, n):
        total = 0.0
        for j in range(n):
            if j > i:
                total = total + 1.0
        return total
    x[tw.thread_idx.x] = inner(tw.thread_idx.x, 10)
"""
    module = imported(tmp_path, text)
    assert result(module.outer) == 2.0
    edit(module, "total + 1.0", "total + 9.0")
    x = np.zeros(32, np.float64)
    module.outer[1, 32](x)
    assert x[7] == 2.0


SCRIPT = """import numpy as np, tilewright as tw
FACTOR = 3
@tw.function
def helper(n):
    if n > 2:
        return n * FACTOR
    return n

@tw.kernel
def kernel(o):
    for i in range(4):
        o[i] = helper(i)

o = np.zeros(4, np.int32)
kernel[1, 1](o)
print(o)
"""


@pytest.mark.parametrize("way", ["-c", "standard input", pytest.param("-i", marks=pytest.mark.slow)])
def test_programs_without_a_file_of_their_own(tmp_path: Path, way: str) -> None:
    script = tmp_path / "script"
    script.write_text(SCRIPT)
    options = {"-c": ["-c", SCRIPT], "standard input": [], "-i": ["-i"]}[way]
    with script.open() if way != "-c" else open(os.devnull) as given:
        done = subprocess.run([sys.executable, *options], stdin=given, capture_output=True, text=True, check=True)
    assert "[0 1 2 9]" in done.stdout, done.stderr


def test_text_that_python_does_not_keep() -> None:
    command = [sys.executable, "-c", f"exec({SCRIPT!r})"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "the source of 'kernel' cannot be read" in done.stderr and "linecache.cache[name] =" in done.stderr
    if sys.version_info < (3, 13):
        done = subprocess.run([sys.executable, "-"], input=SCRIPT, capture_output=True, text=True, check=False)
        assert "it came through a pipe, or was typed at the prompt of a Python before 3.13" in done.stderr


NAMES_ITS_CLASS = """\
import tilewright as tw

class Version:
    def __init__(self, count):
        self.count = count

    @tw.function
    def next(self, limit):
        if self.count < limit:
            return Version(self.count + 1)
        return Version(self.count)

    class Part:
        @tw.function
        def whole(self, count):
            return Version(count * 2)

def made():
    class Local(Version):
        @tw.function
        def next(self, limit):
            return Local(self.count + limit)
    return Local

Local = made()

@tw.kernel
def steps(x):
    state = Version(Version.Part().whole(tw.thread_idx.x - 4).count)
    for _ in range(3):
        state = state.next(100)
    x[tw.thread_idx.x] = tw.float32(Local(state.count).next(10).count)
"""


def test_a_method_that_names_its_class(tmp_path: Path) -> None:
    assert result(imported(tmp_path, NAMES_ITS_CLASS).steps) == (7 - 4) * 2 + 3 + 10
    changed = imported(tmp_path, NAMES_ITS_CLASS)
    edit(changed, "self.count + 1", "self.count + 2")
    with pytest.raises(tw.LanguageError, match="is not what Python compiled"):
        result(changed.steps)
