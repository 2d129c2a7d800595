"""`tilewright layout` and `tilewright draw`: expressions, and what the commands print and write."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tests.helpers.terminal import needs_terminal, printed

import tilewright as tw
from tilewright.cli import main
from tilewright.cli.expressions import evaluate, functions
from tilewright.errors import ArgumentError, LayoutError
from tilewright.layout import E, identity_layout


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(4,8):(8,1)", tw.Layout((4, 8), (8, 1))),
        (" ( 4 , 8 ) : ( 8 , 1 ) ", tw.Layout((4, 8), (8, 1))),
        ("8:2", tw.Layout(8, 2)),
        ("(8):(2)", tw.Layout((8,), (2,))),
        ("((2,2),8)", ((2, 2), 8)),
        ("(2,3):(1@0,1@1)", identity_layout((2, 3))),
        ("(2,3):(3@1@0,-1)", tw.Layout((2, 3), (3 * E(0, 1), -1))),
        ("composition((4,8):(8,1), 8:2)", tw.Layout((2, 4), (16, 1))),
        ("composition(((4,8):(8,1)), (2:2, _))", tw.Layout((2, 8), (16, 1))),
        ("(4,8):(8,1) o 8:2", tw.Layout((2, 4), (16, 1))),
        ("Sw<2,0,2>", tw.Swizzle(2, 0, 2)),
        ("Swizzle(2, 0, shift = 2)", tw.Swizzle(2, 0, 2)),
        ("Sw<2,0,2> o 0 o (4,4):(4,1)", tw.composition(tw.Swizzle(2, 0, 2), tw.row_major((4, 4)))),
        ("Sw<2,0,2> o 4 o (4,4):(4,1)", tw.ComposedLayout(tw.Swizzle(2, 0, 2), 4, tw.row_major((4, 4)))),
        ("size(complement(4:2, 24))", 6),
        ("compatible(24, (4,6))", True),
        ("coalesce((2,(1,6)):(1,(6,2)),)", tw.Layout(12, 1)),
    ],
)
def test_expressions(text: str, value: object) -> None:
    assert evaluate(text) == value


@pytest.mark.parametrize("layout", [tw.Layout(((2, 2), 8), ((1, 4), 2)), tw.composition(tw.Swizzle(1, 1, 1), (8, 4))])
def test_what_prints_can_be_read_back(layout: tw.Layout) -> None:
    assert evaluate(str(layout)) == layout


@pytest.mark.parametrize(
    ("text", "problem", "column"),
    [
        ("", "a number is missing", 0),
        ("(4,8", "',' or ')' is missing", 4),
        ("(4,8):(8,1))", "the expression should end here", 11),
        ("(4,8):", "a number is missing", 6),
        ("4.5", "'.' has no meaning here", 1),
        ("eval(1)", "'eval' is not a function of layouts", 0),
        ("colesce(8)", "did you mean 'coalesce'?", 0),
        ("__import__(1)", "'__import__' is not a function of layouts", 0),
        ("(4).real", "'.' has no meaning here", 3),
        ("Sw<1,2>", "',' is missing", 6),
        ("size 8", "'(' is missing", 5),
        ("(" * 100, "nested more than 64 deep", 64),
    ],
)
def test_errors_point_at_the_place(text: str, problem: str, column: int) -> None:
    with pytest.raises(ArgumentError) as caught:
        evaluate(text)
    assert problem in caught.value.summary
    assert caught.value.details[1].index("^") == column


def test_wrong_arguments_and_operations_without_a_result_are_user_errors() -> None:
    with pytest.raises(ArgumentError, match="coalesce does not take these arguments"):
        evaluate("coalesce()")
    with pytest.raises(ArgumentError, match="rank: x is a layout, a tensor, an integer or a nested tuple, got None"):
        evaluate("rank(_)")
    with pytest.raises(LayoutError, match="extent is 0"):
        evaluate("0:1")


def test_every_function_is_one_of_layouts() -> None:
    assert {"composition", "coalesce", "Layout", "Swizzle", "logical_divide"} <= set(functions())
    assert all(f.__module__.startswith("tilewright.layout") for f in functions().values())


def test_layout_prints_the_table_and_sizes() -> None:
    result = call("layout", "composition((4,8):(8,1), 8:2)")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == [
        "(2,4):(16,1)",
        "     0  1  2  3",
        "  ┌────────────",
        "0 │  0  1  2  3",
        "1 │ 16 17 18 19",
        "size 8, cosize 20, rank 2, depth 1",
    ]
    assert call("layout", "logical_divide((4,8), (2,_)) o 3").exit_code == 0
    assert call("layout", "size((4,8))").output == "32\n"
    assert call("layout", "(2,3):(1@0,1@1)").output.splitlines()[-1] == "size 6, rank 2, depth 1"
    assert "before" in call("layout", "Sw<1,0,1>").output


def test_layout_json() -> None:
    facts = json.loads(call("layout", "(2,2):(1,4)", "--json").output)
    assert facts == {
        "expression": "(2,2):(1,4)",
        "kind": "Layout",
        "result": "(2,2):(1,4)",
        "shape": [2, 2],
        "stride": [1, 4],
        "size": 4,
        "cosize": 6,
        "rank": 2,
        "depth": 1,
        "offsets": [0, 1, 4, 5],
    }
    assert json.loads(call("layout", "idx2crd(9, (4,8))", "--json").output)["result"] == [1, 2]
    assert json.loads(call("layout", "65536:1", "--json").output)["offsets"] is None


def test_layout_reports_errors_without_a_traceback() -> None:
    result = call("layout", "(4,8")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: cannot read the expression")
    for expression in ("tile_to_shape((2,2):(1,2),(0,4))", "crd2idx((1,2),(2,3),1)", "filter_zeros((4,8),(0,1,0))"):
        result = call("layout", expression)
        assert result.exit_code == 1 and result.stderr.startswith("Error: "), result.stderr


def test_layout_of_coordinates_has_no_cosize() -> None:
    for expression in ("(4,8):(1@0,1@1)", "ComposedLayout(4:1@0,0,4:1)"):
        assert "cosize" not in call("layout", expression).output
        assert call("layout", expression).exit_code == 0


def test_draw_writes_a_file(tmp_path: Path) -> None:
    target = tmp_path / "x.typ"
    result = call("draw", "(4,8):(8,1)", "-o", str(target), "--title", "rows", "--limit", "2,3")
    assert result.exit_code == 0, result.output
    assert result.output == f"wrote {target}\n"
    source = target.read_text(encoding="utf-8")
    assert '"rows"' in source and "columns 3 to 7 are left out" in source


def test_draw_without_a_file_prints_the_table() -> None:
    assert call("draw", "(2,2)").output.splitlines()[-1] == "1 │ 1 3"
    assert "32 banks" in call("draw", "(2,64):(64,1)", "--banks", "float16").output


def test_draw_json(tmp_path: Path) -> None:
    target = tmp_path / "x.typ"
    facts = json.loads(call("draw", "(40,2)", "-o", str(target), "--json").output)
    assert facts["file"] == str(target) and facts["result"] == "(40,2)"
    assert facts["notes"] == ["rows 32 to 39 are left out"]
    assert json.loads(call("draw", "8:1", "--json").output)["file"] is None


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["8:1", "-o", "x.gif"], 1, "a drawing is saved as"),
        (["8:1", "--limit", "0,4"], 2, "'0,4' is not ROWS,COLUMNS"),
        (["compatible(1,1)"], 1, "bool has no picture"),
        (["8:1", "--banks", "float77"], 2, "no element type is called 'float77'"),
    ],
)
def test_draw_refuses_bad_input(arguments: list[str], status: int, message: str) -> None:
    result = call("draw", *arguments)
    assert result.exit_code == status, result.output
    assert message in " ".join(result.output.split()).replace("│ ", "")


def test_draw_takes_names_of_instructions(tmp_path):
    name = "SM80_16x8x16_F32BF16BF16F32_TN"
    result = CliRunner().invoke(main, ["draw", name, "-o", str(tmp_path / "mma.svg")])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "mma.svg").stat().st_size > 10_000
    assert name in CliRunner().invoke(main, ["draw", name]).output
    unknown = CliRunner().invoke(main, ["draw", "SM80_1x1x1"])
    assert unknown.exit_code == 1 and "Traceback" not in unknown.output


@pytest.mark.parametrize(
    "text",
    ["repeat(1000000000, 1)", "tuple_repeat(1000000000, 1)", "for_each((1,2), size)", "make_coord_iterator((2,2))"],
)
def test_what_expressions_cannot_ask_for(text: str) -> None:
    with pytest.raises(ArgumentError):
        evaluate(text)
    assert evaluate("elem_less((1,2), (2,3))") is True
    assert evaluate("compact_col_major((4,8), 3)") == (3, 12)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        (
            "make_tiled_mma(SM80_16x8x16_F32BF16BF16F32_TN, (2,2,1))",
            tw.make_tiled_mma(tw.atoms.SM80_16x8x16_F32BF16BF16F32_TN, (2, 2, 1)),
        ),
        ("make_tiled_mma(UniversalFMA(float32), (4,4), (8,8,_))", None),
        ("make_tiled_copy(UniversalCopy(128), (8,4):(4,1), (1,8))", None),
        (
            "make_tiled_copy_A(SM75_U32x4_LDSM_N, make_tiled_mma(SM80_16x8x16_F32F16F16F32_TN))",
            tw.make_tiled_copy_A(tw.atoms.SM75_U32x4_LDSM_N, tw.make_tiled_mma(tw.atoms.SM80_16x8x16_F32F16F16F32_TN)),
        ),
        ("SM75_U32x4_LDSM_N", tw.atoms.SM75_U32x4_LDSM_N),
    ],
)
def test_draw_takes_tiled_copies_and_products(expression: str, value: object) -> None:
    result = call("draw", expression, "--dtype", "float16")
    assert result.exit_code == 0, result.output
    if value is not None:
        assert result.output == tw.draw.text(value, dtype="float16") + "\n"
    assert json.loads(call("draw", expression, "--json", "--dtype", "float16").output)["result"]


def test_draw_summarises_warps_unless_asked_for_all() -> None:
    expression = "make_tiled_mma(SM80_16x8x16_F32BF16BF16F32_TN, (2,2,1))"
    assert "by warp" in call("draw", expression).output
    assert "by warp" not in call("draw", expression, "--whole").output


@pytest.mark.parametrize(
    "expression",
    [
        "make_tiled_copy(UniversalCopy(32), (1000000,1000000), (1,8))",
        "make_tiled_copy(UniversalCopy(32), 4:1, (1,1000000000))",
        "make_tiled_mma(SM80_16x8x16_F32BF16BF16F32_TN, (4096,4096,1))",
        "make_tiled_mma(SM80_16x8x16_F32BF16BF16F32_TN, 1, (1000000000,8,16))",
        "make_tiled_copy(3, 4)",
        "make_tiled_copy(float32, 4)",
        "make_tiled_mma(SM75_U32x4_LDSM_N)",
        "make_tiled_mma(SM80_16x8x16_F32BF16BF16F32_TX)",
        "make_tiled_copy_A(UniversalCopy(32), SM80_16x8x16_F32F16F16F32_TN)",
        "float32",
        "composition(float32, 4:1)",
        "UniversalCopy(3)",
        "UniversalFMA(8:1)",
    ],
)
def test_draw_refuses_tilings_that_are_wrong_or_too_large(expression: str) -> None:
    result = call("draw", expression)
    assert result.exit_code == 1 and result.output.startswith("Error: "), result.output
    assert not isinstance(result.exception, Exception) or isinstance(result.exception, SystemExit)


def test_layouts_alone_have_no_instructions() -> None:
    with pytest.raises(ArgumentError, match="is not a function of layouts"):
        evaluate("make_tiled_mma(SM80_16x8x16_F32BF16BF16F32_TN)")
    assert call("layout", "float32").exit_code == 1


WIDE, THREE_GRIDS = ("layout", "((4,8),(2,2,8)):((1,4),(64,128,256))"), ("draw", "SM80_16x8x16_F32F16F16F32_TN")


@needs_terminal
@pytest.mark.parametrize(("arguments", "width"), [(WIDE, 60), (WIDE, 160), (THREE_GRIDS, 80)])
@pytest.mark.spread(3)
def test_tables_fit_the_terminal(arguments: tuple[str, ...], width: int) -> None:
    """A table that is wider is folded, not wrapped by the terminal, and says the same as in a pipe."""
    command = (sys.executable, "-m", "tilewright", *arguments)
    folded = printed(width, *command)
    assert max(map(len, folded)) <= width
    piped = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=True).stdout
    is_of_threads = "T0V0" in piped  # beside which the numbers of rows count for nothing
    inside, expected = (
        {c for line in lines for c in re.findall(r"T\d+V\d+" if is_of_threads else r"\w+", line.partition("│")[2])}
        for lines in (folded, piped.splitlines())
    )
    assert expected and inside == expected


@needs_terminal
def test_code_is_not_cut_on_a_terminal(tmp_path: Path) -> None:
    """A line of CUDA C++ that is longer than the terminal's goes on in the next."""
    script = tmp_path / "kernels.py"
    script.write_text(
        "import tilewright as tw\n\n\n@tw.kernel\ndef scale(a_long_name_of_an_output, a_long_name_of_an_input):\n"
        "    a_long_name_of_an_output[tw.thread_idx.x] = 2 * a_long_name_of_an_input[tw.thread_idx.x]\n\n\n"
        "def example_scale():\n    return 1, 32, (tw.spec('float32', (32,)), tw.spec('float32', (32,)))\n"
    )
    command = (sys.executable, "-m", "tilewright", "show", f"{script}:scale", "--arch", "sm_80")
    piped = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=True).stdout
    code = [line.rstrip() for line in printed(60, *command) if line.strip()]
    assert code == [line.rstrip() for line in piped.splitlines() if line.strip()]
    assert max(map(len, code)) > 60


@pytest.mark.parametrize("encoding", ["ascii", "ascii:surrogateescape", "cp1252", "cp437", "latin-1", "utf-8"])
@pytest.mark.spread(2)
def test_any_encoding_can_take_a_table(encoding: str) -> None:
    """Windows encodes what is piped by its code page, most of which have no lines of tables; the locale C has ASCII."""
    command = (sys.executable, "-m", "tilewright", "layout", "(4,8):(8,1)")
    done = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": encoding}, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    text = done.stdout.decode(encoding.partition(":")[0])
    assert [re.findall(r"\d+", line) for line in text.splitlines()[3:7]] == [
        [str(i), *map(str, range(8 * i, 8 * i + 8))] for i in range(4)
    ]
    assert ("│" in text) == (encoding in ("utf-8", "cp437")) and ("?" not in text)
