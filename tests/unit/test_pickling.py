"""Errors, findings and all that users hold go to other processes and come back, or say why they cannot."""

import copy
import dataclasses
import importlib
import linecache
import multiprocessing
import pickle
import pkgutil
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
from tests.helpers import portable
from tests.helpers.portable import Family, configured, double, racy, tuned

import tilewright as tw
from tilewright.errors import ArgumentError, CheckError, ScheduleError, TilewrightError
from tilewright.pickling import changed
from tilewright.schedule import Array, MMAShape, Nest, Package, Role, Target, create_parameters
from tilewright.schedule.affine import Dimension, Index
from tilewright.source import SourceLocation

WAYS = {
    **{f"protocol {n}": lambda x, n=n: pickle.loads(pickle.dumps(x, n)) for n in range(2, pickle.HIGHEST_PROTOCOL + 1)},
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def all_modules():
    for module in pkgutil.walk_packages(tw.__path__, "tilewright."):
        if not module.name.endswith("__main__") and ".examples" not in module.name:
            try:
                importlib.import_module(module.name)
            except ImportError:  # of an optional dependency
                continue


def exceptions():
    """Return every exception class of the package, those of the user's kind among them."""
    all_modules()
    found, pending = [], [Exception]
    while pending:
        kind = pending.pop()
        pending += kind.__subclasses__()
        if kind.__module__.partition(".")[0] == "tilewright" or kind is OfAUser:
            found.append(kind)
    return sorted(set(found), key=lambda kind: kind.__qualname__)


class OfAUser(TilewrightError):
    """An error whose constructor takes other things than its base."""

    def __init__(self, number, *, unit):
        super().__init__(f"{number} {unit}", help="another unit", location=PLACE, details=["one\ntwo"])
        self.number, self.unit = number, unit


PLACE = SourceLocation(__file__, 1, "module", 0, 7, SourceLocation(__file__, 3, "caller"))


def example(kind):
    """Return an error of a kind with every attribute filled."""
    if kind is OfAUser:
        return kind(3, unit="mm")
    if kind.__name__ == "CheckError":
        with pytest.raises(kind) as caught:
            portable.find_a_race()
        return caught.value
    if issubclass(kind, TilewrightError):
        return kind("what 3 came", details=["first", "second\nthird"], location=PLACE, help="do that")
    return kind("text")


def same_error(a, b):
    assert type(a) is type(b) and a.args == b.args and str(a) == str(b)
    assert vars(a).keys() == vars(b).keys()
    assert {**vars(a)} == {**vars(b)}


@every_way
def test_every_error_of_the_package_comes_back(way):
    kinds = exceptions()
    assert {"CheckError", "LayoutError", "TuningError", "OfAUser"} <= {kind.__name__ for kind in kinds}
    for kind in kinds:
        error = example(kind)
        if hasattr(error, "add_note"):
            error.add_note("a note")
        same_error(way(error), error)
        if isinstance(error, TilewrightError):
            same_error(way(way(error)), error)
            assert way(error).at(None) is not error


@every_way
def test_findings_come_back_as_data(way):
    run = portable.find_several()
    assert len(run.findings) >= 2
    for finding in run.findings:
        back = way(finding)
        assert (back, back.to_dict(), str(back)) == (finding, finding.to_dict(), str(finding))
    assert way(run).findings == run.findings


def test_a_message_keeps_its_source_line_where_the_file_is_gone(tmp_path):
    file = tmp_path / "gone.py"
    file.write_text("x = 1\ny = undefined_name\n")
    error = CheckError("wrong", location=SourceLocation(str(file), 2, "f", 4, 18))
    text, data = str(error), pickle.dumps(error)
    file.unlink()
    linecache.clearcache()
    back = pickle.loads(data)
    assert "undefined_name" in text and str(back) == text
    assert str(pickle.loads(pickle.dumps(back))) == text


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_finding_in_a_worker_reaches_the_parent(method):
    with pytest.raises(CheckError) as here:
        portable.find_a_race()
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        with pytest.raises(CheckError) as there:
            pool.submit(portable.find_a_race).result(timeout=60)
        with pytest.raises(ArgumentError):
            pool.submit(portable.refused).result(timeout=60)
        assert pool.submit(portable.find_several).result(timeout=60).findings == portable.find_several().findings
        if method == "spawn":
            values = np.arange(32, dtype=np.float32)
            for launch in (double[1, 32], double.configure(min_blocks=2)[portable.blocks, 32]):
                assert np.array_equal(pool.submit(portable.run_kernel, launch, values).result(timeout=60), 2 * values)
            things = [(made(), made) for made in (portable.tiled_copy, portable.tiled_mma)]
            for thing, _ in things:
                hash(thing)  # which remembers it
            assert pool.submit(portable.hash_of, things).result(timeout=60) == [True, True]
            plan, arrays = portable.plan_of_a_product()
            c, a, b = (np.ones(shape, np.float32) for shape in ((16, 16), (16, 8), (8, 16)))
            kernel = plan.build("mm", arrays)
            kernel.source()
            assert pool.submit(portable.call, kernel, c, a, b).result(timeout=60).sum() == 16 * 16 * 9
    assert str(there.value) == str(here.value) and there.value.findings == here.value.findings
    with context.Pool(1) as pool:
        with pytest.raises(CheckError) as there:
            pool.map_async(portable.find_a_race, [None]).get(timeout=60)
    assert str(there.value) == str(here.value)


@every_way
def test_kernels_go_by_their_names(way):
    for kernel in (double, racy, tuned, Family.scale, configured, portable.clamp, tuned.__wrapped__):
        assert way(kernel) is kernel
    options = double.configure(min_blocks=2, arch="sm_80")
    back = way(options)
    assert back.options == options.options and back._code is double._code
    assert way(configured.configure(min_blocks=0)).options.min_blocks == 0
    for bound in (Family(3).scale, Family(5).hidden):
        y = np.zeros(4)
        way(bound)[1, 4](y, np.ones(4))
        assert y.tolist() == [float(bound._bound[0].factor)] * 4
    launcher = way(double[(2, 1), 32])
    assert (launcher.kernel, launcher.grid, launcher.block) == (double, (2, 1), 32)
    x = np.arange(40.0)
    for made in (way(double[portable.blocks, 32]), way(double.configure(min_blocks=1)[2, 32])):
        y = np.zeros(40)
        made(y, x)
        assert np.array_equal(y, 2 * x)
    y = np.zeros(4)
    way(tuned[1, 4])(y, np.ones(4))
    assert y.tolist() == [2.0] * 4


def test_kernels_without_a_name_say_so():
    local = portable.local_kernel()
    replaced = tw.kernel(double.__wrapped__)  # the module's double is another
    traced = portable.plan_of_a_product()[0].build("mm").kernel
    for kernel in (
        local,
        local.configure(min_blocks=4),
        local[1, 4],
        replaced,
        traced,
        tw.autotune(configs=[tw.Config(factor=1)])(tw.kernel(tuned.__wrapped__.__wrapped__)),
    ):
        with pytest.raises(ArgumentError, match="cannot be pickled: it goes by its name") as caught:
            pickle.dumps(kernel)
        assert isinstance(caught.value, TypeError) and "help: define it at the top of a module" in str(caught.value)
        assert copy.deepcopy(copy.copy(kernel)) is not None
    with pytest.raises(ArgumentError, match="grid of <kernel double> cannot be pickled"):
        pickle.dumps(double[lambda y, x: 1, 32])
    with pytest.raises(ArgumentError, match="its stream belongs to this process"):
        pickle.dumps(double.configure(stream=7))
    data = pickle.dumps(double).replace(b"double", b"triple")
    with pytest.raises(ArgumentError, match="triple of module 'tests.helpers.portable' was pickled by its name"):
        pickle.loads(data)
    for way in (pickle.dumps, copy.deepcopy):
        with pytest.raises(ArgumentError, match="addresses of the arrays"):
            way(double[1, 4].prepare(np.zeros(4), np.zeros(4)))


def tensors():
    yield tw.tensor(np.arange(12).reshape(3, 4))
    yield tw.tensor(np.arange(24.0).reshape(4, 6))[:, 2]
    yield tw.tensor(np.arange(8), tw.composition(tw.Swizzle(1, 0, 2), tw.Layout((2, 4))))
    yield tw.tensor(np.arange(6).reshape(2, 3)).to(tw.bfloat16)
    yield tw.tensor(np.arange(6).reshape(2, 3)).to(tw.float8_e4m3fn)
    yield tw.identity_tensor((3, 4))


@every_way
def test_values_come_back_equal(way):
    values = [
        *(getattr(tw, name) for name in ("float32", "bfloat16", "float8_e5m2", "tfloat32", "bool_", "int8")),
        *(tw.Layout((2, (2, 3)), (6, (3, 1))), tw.Swizzle(2, 0, 3), tw.layout.E(1), tw.layout.E(0, 1) * 3),
        *(tw.composition(tw.Swizzle(2, 0, 3), tw.Layout((4, 8), (8, 1))), tw.make_layout(tw.Layout(4), tw.Layout(2))),
        *(tw.spec(tw.float16, (4, 8)), tw.Config(BM=4, grid=3), tw.Space(a=[1, 2])),
        *(portable.tiled_copy(), portable.tiled_mma(), Target("NVIDIA A100"), Target("gfx90a").arch, PLACE),
        *(getattr(tw.atoms, name) for name in tw.atoms.__all__),
    ]
    for value in values:
        if isinstance(value, type(portable.tiled_copy())):
            hash(value)
        back = way(value)
        assert back == value and hash(back) == hash(value) and repr(back) == repr(value), value
        if isinstance(value, tw.DType):
            assert back is value
    assert way(tw.static(tw.spec(tw.float16, (4, 8)))).array == tw.spec(tw.float16, (4, 8))
    for tensor in tensors():
        back = way(tensor)
        assert (back.layout, back.dtype, back.space, repr(back)) == (
            tensor.layout, tensor.dtype, tensor.space, repr(tensor))  # fmt: skip


def test_a_shallow_copy_of_a_tensor_sees_its_elements_and_a_deep_one_does_not():
    tensor = tw.tensor(np.arange(12).reshape(3, 4))
    shallow, deep, sent = copy.copy(tensor), copy.deepcopy(tensor), pickle.loads(pickle.dumps(tensor))
    tensor[1, 2] = 100
    assert (shallow[1, 2], deep[1, 2], sent[1, 2]) == (100, 6, 6)


def test_device_values_stay_in_their_kernel():
    seen = []

    @tw.kernel
    def kernel(y):
        for value in (tw.thread_idx.x + 1, y, y[0]):
            with pytest.raises(ArgumentError, match="of a kernel that is being traced"):
                pickle.dumps(value)
        with pytest.raises(ArgumentError, match="tw.copy"):
            copy.deepcopy(y)
        i = tw.thread_idx.x
        assert copy.deepcopy([i])[0] is i and copy.copy(y).engine is y.engine
        copy.copy(y)[i] = copy.copy(i)
        seen.append(1)

    y = np.zeros(4, np.int32)
    kernel[1, 4](y)
    assert seen and y.tolist() == [0, 1, 2, 3]


@every_way
@pytest.mark.spread(2)
def test_plans_and_packages_come_back_whole(way):
    plan, arrays = portable.plan_of_a_product()
    wanted = plan.build("mm", arrays)
    text = wanted.source()
    c, a, b = (np.ones(shape, np.float32) for shape in ((16, 16), (16, 8), (8, 16)))
    back = way(plan)
    assert [array.name for array in back.arguments] == [array.name for array in plan.arguments]
    assert back.build("mm").source() == plan.build("mm").source()
    package = Package()
    function = package.add(plan, arrays, "mm")
    function.device_source, function.kernel(c.copy(), a, b)
    for kernel in (way(wanted), way(function).kernel, way(package).functions[0].kernel):
        result = c.copy()
        kernel(result, a, b)
        assert kernel.source() == text and result.sum() == 16 * 16 * 9
    with pytest.raises(ScheduleError, match="no value"):
        way(portable.product(16, 16, 8, create_parameters(1, "tile"))[0]).build("mm")
    tile = create_parameters(1, "tile")
    delayed = way(portable.product(16, 16, 8, tile)[0])
    assert delayed.with_parameters({"tile": 4}).block == (4, 4, 1)


@every_way
def test_a_tensorized_kernel_comes_back_without_what_its_trace_noted(way):
    A, B = Array(Role.INPUT, tw.float16, (16, 64)), Array(Role.INPUT, tw.float16, (64, 16))
    C = Array(Role.INPUT_OUTPUT, tw.float32, (16, 16))
    nest = Nest((16, 16, 64))
    i, j, k = nest.get_indices()
    nest.iteration_logic(lambda: C.__setitem__((i, j), C[i, j] + A[i, k] * B[k, j]))
    schedule = nest.create_schedule()
    tile = schedule.tile({i: 16, j: 16, k: 16})
    schedule.reorder(i, j, k, *tile)
    plan = schedule.create_plan(Target("NVIDIA A100"))
    plan.tensorize(tile, MMAShape.M16N16K16)
    kernel = plan.build("mm", (A, B, C))
    attributes, report = vars(kernel).keys() - {"kernel"}, str(kernel.report())
    assert kernel.roles and kernel.k_indices
    back = way(kernel)
    assert vars(back).keys() - {"kernel"} == attributes
    assert back.roles == {} and back.k_indices == set()
    assert str(back.report()) == report


def test_a_copy_of_a_plan_or_a_package_goes_its_own_way():
    plan, arrays = portable.plan_of_a_product()
    package = Package()
    package.add(plan, arrays, "mm")
    other = copy.copy(package)
    other.add(plan, arrays, "another")
    assert [f.name for f in package.functions] == ["mm"] and [f.name for f in other.functions] == ["mm", "another"]
    nest = Nest((8, 4))
    i, j = nest.get_indices()
    A, B = (Array(role, tw.float32, (8, 4), name=role.name) for role in (Role.INPUT, Role.OUTPUT))
    nest.iteration_logic(lambda: B.__setitem__((i, j), A[i, j] + 1.0))
    plan = nest.create_schedule().create_plan(Target("NVIDIA A100"))
    copied, nest_copy = copy.copy(plan), copy.copy(nest)
    copied.cache(A, index=j)
    nest_copy.iteration_logic(lambda: B.__setitem__((i, j), A[i, j] + 2.0))
    assert (plan.steps, plan.caches, len(nest.statements)) == ([], [], 1)
    assert (len(copied.steps), len(copied.caches), len(nest_copy.statements)) == (1, 1, 2)


@every_way
def test_a_copied_array_is_another_in_the_same_place_of_the_order(way):
    first, second = (Array(Role.INPUT, tw.float32, (8,), name=name) for name in "AB")
    things = first, second, Index("i"), Dimension("M")
    for thing in things:
        back = way(thing)
        assert back.number != thing.number and way(back).number > back.number > thing.number
    assert way(first).number < second.number and first.number < way(first).number
    # A copy beside its original: two arrays, which are not taken for one.
    C = Array(Role.OUTPUT, tw.float32, (8,), name="C")
    twin = way(first)
    twin.name = "twin"
    nest = Nest((8,))
    i = nest.get_indices()
    nest.iteration_logic(lambda: C.__setitem__(i, first[i] - twin[i]))
    plan = nest.create_schedule().create_plan(Target("NVIDIA A100"))
    plan.vectorize(i)
    c = np.zeros(8, np.float32)
    kernel = plan.build("difference", (C, first, twin))
    kernel(c, np.full(8, 5, np.float32), np.full(8, 3, np.float32))
    assert c.tolist() == [2.0] * 8


@every_way
def test_affine_expressions_are_sorted_where_they_arrive(way):
    i, j = Index("i"), Index("j")
    expression = 2 * i + 3 * j + 1
    (a, b), back = way(((i, j), expression)) if way is not copy.copy else ((i, j), copy.copy(expression))
    assert back._is(2 * a + 3 * b + 1)


@every_way
def test_profiles_come_back_with_what_the_compiler_says(way):
    with tw.simulate(profile=True) as run:
        double[1, 32](np.zeros(32), np.zeros(32))
    assert str(way(run).report()) == str(run.report())
    assert str(way(run.report())) == str(run.report())
    lowered = double[1, 32].lower(np.zeros(32), np.zeros(32))
    assert way(lowered).source == lowered.source and way(lowered.source).line_map == lowered.source.line_map


def test_a_changed_dataclass_is_what_replace_gives():
    one = tw.matmul.explain(tw.spec(tw.bfloat16, (64, 128)), tw.spec(tw.bfloat16, (128, 256))).problem
    hashes = {hash(one)}
    for values in ({"m": 65}, {"n": 8, "k": 1}, {}):
        found, expected = changed(one, **values), dataclasses.replace(one, **values)
        assert found == expected and hash(found) == hash(expected) and type(found) is type(one)
        hashes.add(hash(found))
    assert len(hashes) == 3 and one.m == 64
