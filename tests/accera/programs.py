"""Programs of our own in Accera's words, by which the adapter is tested: what each becomes is in its name."""

import unittest

import numpy as np

from accera import Array, MMAShape, Nest, Package, Role, ScalarType, Target, create_dimensions, fuse
from accera import max as accera_max
from accera.test import verifiers


def product(m, n, depth, kind=ScalarType.float32, accumulator=ScalarType.float32):
    A = Array(role=Role.INPUT, element_type=kind, shape=(m, depth))
    B = Array(role=Role.INPUT, element_type=kind, shape=(depth, n))
    C = Array(role=Role.INPUT_OUTPUT, element_type=accumulator, shape=(m, n))
    nest = Nest(shape=(m, n, depth))
    i, j, k = nest.get_indices()

    @nest.iteration_logic
    def _():
        C[i, j] += A[i, k] * B[k, j]

    return nest, (A, B, C), (i, j, k)


class Programs(unittest.TestCase):
    def build(self, plan, args, name):
        package = Package()
        function = package.add(plan, args=args, base_name=name)
        with verifiers.VerifyPackage(self, name) as verifier:
            package.build(name, format=Package.Format.HAT_DYNAMIC, mode=Package.Mode.RELEASE)
        return verifier, function

    def test_works_on_a_cpu(self):
        nest, args, (i, j, k) = product(12, 10, 7)
        schedule = nest.create_schedule()
        ii = schedule.split(i, 5)
        schedule.reorder(i, j, k, ii)
        plan = schedule.create_plan()
        plan.cache(args[1], index=j)
        verifier, function = self.build(plan, args, "on_a_cpu")
        a, b = np.random.rand(12, 7).astype("f"), np.random.rand(7, 10).astype("f")
        c = np.ones((12, 10), np.float32)
        verifier.check_correctness(function.name, before=(a, b, c), after=(a, b, c + a @ b))

    def test_works_with_sizes(self):
        M, N = create_dimensions()
        A = Array(role=Role.INPUT, element_type=float, shape=(M, N))
        B = Array(role=Role.INPUT_OUTPUT, element_type=float, shape=(M, N))
        nest = Nest(shape=(M, N))
        i, j = nest.get_indices()

        @nest.iteration_logic
        def _():
            B[i, j] = accera_max(A[i, j], 0.25)

        schedule = nest.create_schedule()
        schedule.split(j, 4)
        verifier, function = self.build(schedule, (M, N, A, B), "with_sizes")
        a, b = np.random.rand(3, 9).astype("f"), np.zeros((3, 9), np.float32)
        sizes = (np.int64(3), np.int64(9))
        verifier.check_correctness(function.name, before=(*sizes, a, b), after=(*sizes, a, np.maximum(a, 0.25)))

    def test_works_fused(self):
        first, (A, B, C), _ = product(8, 8, 4)
        second = Nest(shape=(8, 8))
        i, j = second.get_indices()

        @second.iteration_logic
        def _():
            C[i, j] = C[i, j] * 0.5

        schedule = fuse(first.create_schedule(), second.create_schedule(), partial=2)
        self.build(schedule.create_plan(), (A, B, C), "fused")

    def test_works_on_a_gpu(self):
        nest, args, (i, j, k) = product(32, 32, 16)
        target = Target(Target.Model.NVIDIA_V100, category=Target.Category.GPU)
        schedule = nest.create_schedule()
        ii, jj = schedule.split(i, 8), schedule.split(j, 8)
        schedule.reorder(i, j, ii, jj, k)
        plan = schedule.create_plan(target)
        grid = target.GridUnit
        plan.bind({i: grid.BLOCK_Y, j: grid.BLOCK_X, ii: grid.THREAD_Y, jj: grid.THREAD_X})
        plan.cache(args[0], index=k, location=target.MemorySpace.SHARED)
        self.build(plan, args, "on_a_gpu")

    def test_works_with_matrix_instructions(self):
        nest, args, (i, j, k) = product(32, 32, 32, ScalarType.float16)
        target = Target(Target.Model.NVIDIA_RTX_A6000)
        schedule = nest.create_schedule()
        splits = target.tensor_core_info.compute_tensor_splits(MMAShape.M16xN16xK16_B1)
        ii, jj = schedule.split(i, 16), schedule.split(j, 16)
        iii, jjj, kk = schedule.split(ii, splits[0]), schedule.split(jj, splits[1]), schedule.split(k, splits[2])
        plan, tile = schedule._create_tensorizable_plan(
            target,
            block_indices=(i, j),
            warp_indices=(ii, jj),
            tensor_indices=(iii, jjj, kk),
            outer_nest_order=(i, j, ii, jj, k),
        )
        plan.tensorize(indices=tile, mma_shape=MMAShape.M16xN16xK16_B1)
        self.build(plan, args, "with_matrix_instructions")

    def test_refused(self):
        X = Array(role=Role.INPUT_OUTPUT, element_type=ScalarType.float32, shape=(8, 8))
        nest = Nest(shape=(7, 7))
        i, j = nest.get_indices()

        @nest.iteration_logic
        def _():
            X[i + 1, j] = X[i, j + 1]

        nest.create_schedule().reorder(j, i)

    def test_wrong(self):
        nest, args, _ = product(4, 4, 4)
        verifier, function = self.build(nest.create_plan(), args, "wrong")
        a = np.ones((4, 4), np.float32)
        verifier.check_correctness(function.name, before=(a, a, a), after=(a, a, a @ a))

    def test_unsayable(self):
        nest, _, _ = product(4, 4, 4)
        nest.create_plan().take_a_photograph()

    def test_slow(self):
        while True:
            pass
