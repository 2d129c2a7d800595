"""The pages that say how to do something, and those that explain: their programs run, and print what the pages show."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from tests.helpers.pages import DOCS, Session, agrees, blocks_of, shell_of_this_python, skip_where_it_cannot_run
from tests.helpers.slow import rest_is_slow

# Each page, and the least number of blocks of it that are run.
PAGES = {
    "concepts/layouts.md": 2,
    "concepts/life_of_a_kernel.md": 1,
    "concepts/memory_and_barriers.md": 1,
    "concepts/profiler.md": 2,
    "concepts/simulator.md": 1,
    "concepts/tiles.md": 4,
    "how_to/bank_conflict.md": 4,
    "how_to/choose_a_layout.md": 4,
    "how_to/debug_a_race.md": 4,
    "how_to/epilogue.md": 5,
    "how_to/jax.md": 1,
    "how_to/pipeline_a_loop.md": 3,
    "how_to/pytorch_and_jax.md": 1,
    "how_to/read_generated_code.md": 4,
    "how_to/ship_a_cubin.md": 3,
    "how_to/shard_a_model.md": 0,  # tests/torch runs it and the next two
    "how_to/overlap_communication.md": 0,
    "how_to/distribute_experts.md": 0,
    "how_to/test_without_a_gpu.md": 2,
    "how_to/tune.md": 4,
    "names_by_example.md": 70,
    "several_gpus.md": 6,
    "simulator.md": 1,
}


# These run test suites, tuning, many products and several GPUs, which take seconds.
LONG = ("how_to/epilogue.md", "how_to/test_without_a_gpu.md", "how_to/tune.md", "several_gpus.md")


@pytest.mark.parametrize("name", rest_is_slow(PAGES, *(PAGES.keys() - set(LONG))))
def test_programs_print_what_the_page_shows(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page, folder = DOCS / name, tmp_path / "page"
    skip_where_it_cannot_run(page.read_text(encoding="utf-8"))
    folder.mkdir()
    monkeypatch.chdir(folder)
    session = Session(page.stem, folder, shell_of_this_python(tmp_path))
    assert session.run([*blocks_of(page.read_text(encoding="utf-8"))]) >= PAGES[name]


# What blocks of pages need, and the module that brings it.
NEEDS = {"PyTorch": "torch", "CuPy": "cupy", "JAX": "jax"}


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name in PAGES if "# needs " in (DOCS / name).read_text(encoding="utf-8")])
def test_what_needs_a_gpu_runs_on_one(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # or JAX takes most of the memory
    there = {need for need, module in NEEDS.items() if importlib.util.find_spec(module) is not None}
    page = DOCS / name
    blocks = [*blocks_of(page.read_text(encoding="utf-8"))]
    if not any(block.needs and block.needs <= there | {"a GPU"} for block in blocks):
        pytest.skip("needs PyTorch, or CuPy and JAX")
    monkeypatch.chdir(tmp_path)
    Session(page.stem, tmp_path, available=frozenset(there | {"a GPU"})).run(
        [block for block in blocks if block.language in ("python", "text")]
    )


def test_needs_are_things_that_the_tests_know() -> None:
    needs = {
        need for name in PAGES for block in blocks_of((DOCS / name).read_text(encoding="utf-8")) for need in block.needs
    }
    assert needs == {*NEEDS, "a GPU"}


def test_every_page_is_run() -> None:
    found = {f"{folder}/{page.name}" for folder in ("how_to", "concepts") for page in (DOCS / folder).glob("*.md")}
    assert found == {name for name in PAGES if "/" in name}


def test_each_how_to_fits_two_screens() -> None:
    how_to = (name for name in PAGES if name.startswith("how_to/"))
    long = {name: n for name in how_to if (n := len((DOCS / name).read_text(encoding="utf-8").splitlines())) > 170}
    assert long == {}


PAGE = """
```python
x = 1
print(x, "and more")
```

```text
{printed}
```

```python
# needs a GPU
undefined()
```

```console
$ echo one; exit {status}
{typed}
[exit status 3]
```
"""


def run(folder: Path, **parts: object) -> int:
    text = PAGE.format(**{"printed": "1 and more", "typed": "one", "status": 3, **parts})
    return Session("page", folder).run([*blocks_of(text)])


@pytest.mark.parametrize("parts", [{}, {"printed": "1 ... more"}, {"typed": "o..."}])
def test_what_a_page_shows_is_found_to_be_so(tmp_path: Path, parts: dict[str, object]) -> None:
    assert run(tmp_path, **parts) == 2


@pytest.mark.parametrize("parts", [{"printed": "2 and more"}, {"typed": "two"}, {"status": 0}, {"status": 4}])
def test_what_is_not_so_is_found(tmp_path: Path, parts: dict[str, object]) -> None:
    with pytest.raises(AssertionError, match="page, line"):
        run(tmp_path, **parts)


def test_an_error_that_a_page_does_not_show_is_not_overlooked(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        Session("page", tmp_path).run([*blocks_of("```python\n1 / 0\n```\n")])
    assert Session("page", tmp_path).run(
        [*blocks_of("```python\n1 / 0\n```\n\n```text\nZeroDivisionError: ...\n```\n")]
    )
    with pytest.raises(SyntaxError):
        Session("page", tmp_path).run([*blocks_of("```python\n# needs a GPU\nif\n```\n")])


def test_a_block_with_needs_is_run_where_they_are_there(tmp_path: Path) -> None:
    blocks = [*blocks_of("```python\n# needs a fish, water and time\nswims = 1 / 0\n```\n")]
    assert blocks[0].needs == {"a fish", "water", "time"}
    assert Session("page", tmp_path, available=frozenset({"a fish", "time"})).run(blocks) == 0
    with pytest.raises(ZeroDivisionError):
        Session("page", tmp_path, available=frozenset({"a fish", "water", "time", "more"})).run(blocks)


def test_dots_stand_for_anything() -> None:
    assert agrees("a\n...\nb\n", "a\n1\n2\nb\n")
    assert not agrees("a\n...\nc\n", "a\n1\n2\nb\n")
