"""`Plan`: how the loops of a schedule run on a GPU."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright.arguments import instance, shown
from tilewright.dtypes import dtype
from tilewright.errors import ScheduleError
from tilewright.frames import hiding_frames, warn_at
from tilewright.pickling import with_own_containers
from tilewright.schedule.affine import Dimension, Index
from tilewright.schedule.arrays import Array
from tilewright.schedule.binding import Binding, bind
from tilewright.schedule.cache_placement import place_cache, refuse_nonsense, refuse_unknown, settled
from tilewright.schedule.caches import Cache, Location, Strategy
from tilewright.schedule.crossings import Crossing, crossings
from tilewright.schedule.delayed import Recorder, Resolution, recorded, waiting
from tilewright.schedule.factors import NoProductError
from tilewright.schedule.heuristics import NoneCacheHeuristics, best_of
from tilewright.schedule.lanes import MAX_LANES, refuse_vector
from tilewright.schedule.loop_nest import LoopNest
from tilewright.schedule.memory_spaces import Auto
from tilewright.schedule.mma_shapes import MMAFragmentOp, MMASchedulingPolicy, MMAShape
from tilewright.schedule.orders import refuse_violations
from tilewright.schedule.plan_state import PlanState, Tensorization
from tilewright.schedule.plan_text import plan_data, plan_text
from tilewright.schedule.report import Report
from tilewright.schedule.scheduled import ScheduledKernel
from tilewright.schedule.targets import GridUnit, Target, is_count
from tilewright.schedule.tensorization import dealt_to_lanes, tensorization_of, with_operands
from tilewright.schedule.transforms import erase


class Plan(PlanState, Recorder):
    """The loops of a schedule, and what each becomes on a target: blocks, threads, vectors, matrix instructions.

    Made by `schedule.create_plan(target)`. `plan.build()` returns the kernel. Unbound loops run sequentially in each
    thread.

    >>> import tilewright as tw
    >>> from tilewright.schedule import Array, Nest, Role, Target
    >>> A, B = (Array(Role.INPUT, tw.float32, (64, 64), name=name) for name in "AB")
    >>> C = Array(Role.INPUT_OUTPUT, tw.float32, (64, 64), name="C")
    >>> nest = Nest((64, 64, 64))
    >>> i, j, k = nest.get_indices()
    >>> @nest.iteration_logic
    ... def _():
    ...     C[i, j] += A[i, k] * B[k, j]
    >>> schedule = nest.create_schedule()
    >>> ii, jj = schedule.tile({i: 16, j: 16})
    >>> schedule.reorder(i, j, ii, jj, k)
    >>> target = Target("NVIDIA A100")
    >>> plan = schedule.create_plan(target)
    >>> plan.bind({i: target.GridUnit.BLOCK_Y, j: target.GridUnit.BLOCK_X,
    ...            ii: target.GridUnit.THREAD_Y, jj: target.GridUnit.THREAD_X})
    >>> kernel = plan.build()
    >>> kernel.grid, kernel.block
    ((4, 4, 1), (16, 16, 1))

    Source: Accera, `Plan`.
    """

    def __init__(self, nest: LoopNest, target: Target | None = None) -> None:
        if target is not None and not isinstance(target, Target):
            raise ScheduleError(f"{target!r} is not a Target", help="such as Target('NVIDIA A100')")
        PlanState.__init__(self, nest, Target() if target is None else target)
        Recorder.__init__(self, nest)  # calls that wait for a parameter's value are done by `with_parameters`
        self.choices: dict[Any, list[Any]] = {}  # Any: parameters that `auto` made, and their values

    def __copy__(self) -> Plan:
        found: Plan = with_own_containers(self)
        return found

    @property
    def block(self) -> tuple[int, int, int]:
        """The threads of a block along each axis."""
        if self.is_delayed:
            raise waiting(self.start, self.steps)
        return super().block

    @recorded
    def bind(
        self,
        mapping: Mapping[Index | tuple[Index, ...], GridUnit],
        *,
        producer: bool | None = None,
        blocks: int | None = None,
    ) -> None:
        """Distribute the iterations of loops over blocks, threads, warps or warpgroups.

        `plan.bind({i: target.GridUnit.BLOCK_Y, (j, jj): target.GridUnit.BLOCK_X})`: the iterations of a bound loop run
        at the same time, one for each block, thread or warp of the unit. A tuple binds several loops to one unit, the
        last of which varies fastest. WARP_X and WARP_Y count whole warps (for `tensorize`) and are not mixed with
        THREAD units: a block then has `warp_size * WARP_X` by `WARP_Y` threads. WARPGROUP counts warpgroups of 128
        threads, for `tensorize` by a shape of theirs; they are not mixed with WARP and THREAD units either.

        `producer=True` adds a producer warpgroup to the block, which runs no loop: one thread of it fills all caches in
        shared memory by TMA, as far ahead as they have buffers (`pipeline_stages`), while the others multiply. They
        synchronise by mbarriers.

        `blocks=n` launches at most n blocks, usually one for each multiprocessor. Block b then does the work of blocks
        b, b + n, b + 2 n and so on, one after the other; BLOCK_X varies fastest.

        If threads of a block access one element in different iterations of a loop that is not bound, a barrier after
        each of its iterations keeps them in order: so the diagonals of a skewed nest run one after the other.

        Raises `ScheduleError` for a loop that is bound twice, threads beyond the target's limits, and where iterations
        that different threads would run access the same element at the same time, or in different blocks, and one of
        them writes: the error names the accesses.
        """
        instance("Plan.bind", "mapping", mapping, Mapping, "a dict from loops to units of the grid")
        instance("Plan.bind", "producer", producer, (bool, type(None)), "True or False")
        if blocks is not None and not is_count(blocks):
            raise ScheduleError(f"blocks={blocks!r}", help="a whole number of blocks, at least 1: 132 on an H200")
        with_producer = self.producer if producer is None else producer
        bindings = bind(self.nest, self.bindings, mapping, self.target, producer=with_producer)
        self.crossings = () if self.nest.is_unchecked else crossings(self.nest, bindings)
        self.bindings: tuple[Binding, ...] = bindings
        self.producer: bool = with_producer
        self.blocks: int | None = self.blocks if blocks is None else blocks

    def auto(self, *heuristics: NoneCacheHeuristics, precision: str = "ieee") -> Plan:
        """Choose bindings, tiles, caches and matrix instructions, and return the plan itself.

        It tries the following, in this order, and takes the first that passes every check:

        - on sm_90a a product C += A * B of static extents by warpgroups, in the tile that a model of a multiprocessor
          puts first, with a producer that fills stages by TMA; rows of A and B are multiples of 16 bytes apart;
        - a product C += A * B of static extents on matrix instructions, in blocks of 2 x 2 warps of 2 x 2 tiles with A
          and B in shared memory, or of one warp and one tile; not where an instruction rounds its operands, unless
          `precision="tf32"` says that float32 may be rounded;
        - all loops whose iterations are independent on blocks and threads, the one with the most contiguous accesses
          along THREAD_X; arrays whose elements several threads of a block read in shared memory, and sums in registers;
        - the same without shared memory, then without registers; the plan as it is.

        The order of dependent accesses is never changed. With heuristics it adds their caches instead, whose parameters
        `Package.add` then chooses. Raises `ScheduleError` for a plan on which something was chosen already, or that
        waits for parameters, and for a precision that is neither "ieee" nor "tf32". Source: Accera, `Plan.auto`.
        """
        if precision not in ("ieee", "tf32"):
            raise ScheduleError(f"auto: precision={precision!r}", help='"ieee", or "tf32" to round float32 to it')
        for heuristic in heuristics:
            if not isinstance(heuristic, NoneCacheHeuristics):
                raise ScheduleError(
                    f"auto takes heuristics, got {heuristic!r}", help="algorithms.NoneCacheHeuristics(source=B)"
                )
            index, layout, choices = heuristic.choices(self.nest.order)
            self.choices.update(choices)
            self._cache_once(heuristic.source, index, layout)
        if heuristics:
            return self
        if self.is_delayed or self.bindings or self.caches or self.vectorized or self.tensorization is not None:
            raise ScheduleError(
                "auto chooses bindings, caches and all else, and this plan has some or waits for parameters",
                help="call it on a new plan: schedule.create_plan(target).auto()",
            )
        best = best_of(self, precision)
        self.__dict__.update(vars(best))
        return self

    @recorded
    def _cache_once(self, source: Array, index: Index, layout: Any) -> None:  # Any: as in `cache`
        """Cache an array in shared memory, unless a cache of it is filled at the same place already."""
        made = self.cache(source, index=index, layout=layout)
        if any(other.array is made.array and self.depth(other) == self.depth(made) for other in self.caches[:-1]):
            self.caches.pop()

    def pack_and_embed_buffer(self, target: Array, *args: Any, **options: Any) -> None:  # Any: as in Accera
        """Raise `ScheduleError`: a plan does not pack arrays into the kernel's file."""
        raise ScheduleError(
            f"pack_and_embed_buffer of {getattr(target, 'name', target)}: no packed copy of an array is built into "
            "a kernel",
            help="declare the packed values: Array(Role.CONST, data=packed, layout=...); "
            "a cache rearranges what a block reads",
        )

    def emit_runtime_init_pack(self, target: Array, *args: Any, **options: Any) -> None:  # Any: as in Accera
        """Raise `ScheduleError`: a plan is one kernel, and packing an array before it is another one."""
        raise ScheduleError(
            f"emit_runtime_init_pack of {getattr(target, 'name', target)}: a plan is one kernel, and packs no array "
            "before it",
            help="write a nest that copies the array into one of another layout, and give its result to this plan; "
            "a cache rearranges what a block reads",
        )

    emit_runtime_init_packing = emit_runtime_init_pack

    @recorded
    def erase_loops(self, indices: Sequence[Index] | Index) -> None:
        """Reduce loops to their first iteration, so that their body runs once, with their index at 0.

        It is for nests that call a function for a whole tile, at its first element: `plan.erase_loops([ii, jj])`.
        Dependences are those of the iterations that are left, so that an order may become legal.

        Raises `ScheduleError` for a loop that is bound, tensorized or padded, or that distinguishes fused schedules or
        calls. Source: Accera, `Plan._erase_loops`.
        """
        instance("Plan.erase_loops", "indices", indices, (Index, list, tuple), "a list of indices")
        chosen = [indices] if isinstance(indices, Index) else list(indices)
        for index in chosen:
            self._refuse_bound(index, "erase")
            if self.tensorization is not None and index in self.tensorization.indices:
                raise ScheduleError(f"{index} is a loop of the tile and is erased", help="erase loops outside of it")
        self.nest = erase(self.nest, chosen)
        if self.bindings and not self.nest.is_unchecked:
            self.crossings: tuple[Crossing, ...] = crossings(self.nest, self.bindings)

    _erase_loops = erase_loops  # Accera calls it so

    @recorded
    def unroll(self, index: Index) -> None:
        """Unroll a loop: the kernel's code contains each of its iterations.

        Raises `ScheduleError` for a loop that is bound, or whose length is known only at launch.
        """
        self._refuse_bound(index, "unroll")
        if self.nest.loop(index).trips is None:
            raise ScheduleError(f"{index} runs to {self.nest.loop(index).stop}, which only the launch knows")
        self.nest: LoopNest = replace(self.nest, unrolled=self.nest.unrolled | {index})

    @recorded
    def vectorize(self, index: Index) -> None:
        """Run a loop as vectors: its iterations read and write neighbours by as wide accesses as alignment allows.

        All iterations of the loop run at once, at most 64 with those of other vectorized loops; a longer loop, or one
        whose length is known only at launch, runs in blocks. Loops inside of it run around these vectors (unroll and
        jam), as if the loop were innermost. Contiguous accesses along it become vector loads and stores of up to 16
        bytes, others stay scalar, and accesses that do not depend on it are done once. A reduction over it (`+=`, `*=`,
        min, max, `&=`, `|=`, `^=`) is computed in partial results, which are combined at its end.

        Raises `ScheduleError` for a loop that is bound, that numbers fused schedules, or whose iterations depend on one
        another: the error names the accesses that would be reordered. If loops are legal only together, `build` raises
        the error unless all of them are vectorized by then.
        """
        self._refuse_bound(index, "vectorize")
        if not self.nest.is_unchecked:  # else the kernel is checked when it is built
            refuse_vector(self, index)
        if (self.nest.loop(index).trips or MAX_LANES + 1) <= MAX_LANES:
            self.unroll(index)
        self.vectorized: frozenset[Index] = self.vectorized | {index}

    @recorded
    def kernelize(
        self, unroll_indices: Sequence[Index] | Index, vectorize_indices: Sequence[Index] | Index | None = None
    ) -> None:
        """Unroll loops and vectorize others: `unroll` and `vectorize` for each.

        Raises `ScheduleError` as they do.
        """
        kinds = (Index, list, tuple)
        instance("Plan.kernelize", "unroll_indices", unroll_indices, kinds, "a list of indices")
        instance("Plan.kernelize", "vectorize_indices", vectorize_indices, (*kinds, type(None)), "a list of indices")
        vectors = [] if vectorize_indices is None else vectorize_indices
        chosen = [vectors] if isinstance(vectors, Index) else list(vectors)
        unrolled = [unroll_indices] if isinstance(unroll_indices, Index) else list(unroll_indices)
        for index in unrolled:
            self.unroll(index)
        for index in chosen:
            self.vectorize(index)

    @recorded
    def parallelize(
        self,
        indices: Sequence[Index] | Index,
        pin: Any = None,  # Any: cores in Accera, which a GPU does not name
        policy: str = "static",
        max_threads: int | None = None,
    ) -> None:
        """Run loops in parallel on the multiprocessors: bind them to blocks, together as one unit.

        They are adjacent in the order of the loops, outermost first, and are bound to the first free one of BLOCK_X,
        BLOCK_Y and BLOCK_Z. The GPU assigns blocks to its multiprocessors as they become free: `pin`, `policy`
        ("static" or "dynamic") and `max_threads` are accepted for compatibility with Accera, and change neither result
        nor kernel.

        Raises `ScheduleError` for loops that are not adjacent or in another order, and as `bind` does. Source: Accera,
        `Plan.parallelize`.
        """
        kinds = (Index, list, tuple)
        instance("Plan.parallelize", "indices", indices, kinds, "a list of indices")
        chosen = (indices,) if isinstance(indices, Index) else tuple(indices)
        if policy not in ("static", "dynamic"):
            raise ScheduleError(f"policy={policy!r}", help="'static' or 'dynamic'")
        if max_threads is not None and not is_count(max_threads):
            raise ScheduleError(f"max_threads={max_threads!r}", help="a whole number, at least 1")
        first = self.nest.position(chosen[0]) if chosen else 0
        if not chosen or self.nest.order[first : first + len(chosen)] != chosen:
            raise ScheduleError(
                f"parallelize of ({', '.join(map(str, chosen))})",
                help=f"name neighbours among ({', '.join(map(str, self.nest.order))}), in this order",
            )
        taken = {binding.unit for binding in self.bindings}
        units = (GridUnit.BLOCK_X, GridUnit.BLOCK_Y, GridUnit.BLOCK_Z)
        free = next((unit for unit in units if unit not in taken), None)
        if free is None:
            raise ScheduleError(
                "parallelize, and BLOCK_X, BLOCK_Y and BLOCK_Z are bound already", help="name all loops in one call"
            )
        self.bind({chosen: free})

    @recorded
    def cache(
        self,
        source: Array | Cache,
        index: Index | None = None,
        trigger_index: Index | None = None,
        layout: Any = None,  # Any: an Array.Layout, strides, or a Layout of the layout algebra
        max_elements: int | None = None,
        level: int | None = None,
        trigger_level: int | None = None,
        location: Location | Auto | None = None,
        double_buffer: bool = False,
        double_buffer_location: Location | Auto | None = None,
        vectorize: bool | int | Auto | None = True,
        strategy: Strategy | Auto | None = Strategy.STRIPED,
        element_type: Any = None,  # Any: whatever names an element type
        pipeline_stages: int | None = None,
        thrifty: bool | Auto | None = False,
        tma: bool | None = None,
    ) -> Cache:
        """Keep the part of an array that the loops from `index` inwards access in faster memory; return the cache.

        One of `index`, `level` (the number of loops inside, so that `level=2` is the index before last) and
        `max_elements` (as many of the innermost loops as access no more elements than that) determines what is kept;
        `trigger_index` or `trigger_level`, an outer or the same loop, when it is filled, with all that is accessed from
        there on. Elements written in the cache go back to the array when those loops are done. A `source` may be a
        cache, which is then cached again. `max_elements` counts with the loops bound as they are when the plan is
        built.

        `location` is SHARED (all threads of the block, whose bound loops all count as inside), GLOBAL (the same in
        global memory, which each launch allocates), PRIVATE (registers of each thread) or MMA_FRAGMENT (registers of a
        warp, as its matrix instructions hold them; for operands of `tensorize`). The default is SHARED, and GLOBAL if a
        block is one thread and shared memory cannot hold it. `layout` is FIRST_MAJOR, LAST_MAJOR, strides or a
        `tw.Layout` of the kept box; by default a cache in shared memory gets a layout that its readers read without
        bank conflicts. `element_type` keeps the elements in another type.

        `strategy` distributes the elements of a shared cache: STRIPED gives neighbouring vectors to neighbouring
        threads, BLOCKED gives each thread a run of them. `vectorize` is the number of elements a thread moves at once,
        True for as many as alignment allows, False for one. AUTO is the same as omitting the argument.

        `double_buffer` loads for the next iteration of the enclosing loop while this one is computed: into a second
        buffer in the same memory, or with `double_buffer_location` PRIVATE through registers into the same buffer.
        `pipeline_stages=n` has n buffers, n - 1 iterations ahead; in shared memory cp.async fills them where the target
        has it. A cache in fragments is double-buffered in registers.

        `tma` says whether bulk copies (TMA, from sm_90 on) fill a cache in shared memory: one thread starts the copy of
        the whole box, with zeros beyond the array's end, and the others wait at an mbarrier. Without it they fill what
        matrix instructions of warpgroups read, where they can, and nothing else.

        A `thrifty` cache is omitted if it would have the same layout as its source, unless `location` names memory
        other than the source's.

        Raises `ScheduleError` for none or more than one of index, level and max_elements, an index that is bound or no
        loop, and accesses that no single box can hold. Source: Accera, `Plan.cache`.
        """
        location, double_buffer_location = _chosen(location), _chosen(double_buffer_location)
        where = Location.SHARED if location is None else location
        strategy = Strategy.STRIPED if strategy is None or isinstance(strategy, Auto) else strategy
        vectorize = True if vectorize is None or isinstance(vectorize, Auto) else vectorize
        thrifty = False if thrifty is None or isinstance(thrifty, Auto) else thrifty
        refuse_unknown(where, strategy, double_buffer_location, pipeline_stages)
        instance("Plan.cache", "thrifty", thrifty, (bool,), "True or False")
        instance("Plan.cache", "tma", tma, (bool, type(None)), "True or False")
        placed = place_cache(
            self,
            source,
            index=index,
            trigger_index=trigger_index,
            max_elements=max_elements,
            level=level,
            trigger_level=trigger_level,
            location=where,
        )
        held = placed.source.element_type if element_type is None else _dtype(element_type)
        made = replace(
            placed,
            layout=layout,
            location_is_given=location is not None,
            stages=_stages(double_buffer, double_buffer_location, pipeline_stages, where),
            through_registers=_is_through_registers(double_buffer, double_buffer_location, where),
            vectorize=vectorize,
            strategy=strategy,
            element_type=held,
            thrifty=thrifty,
            tma=tma,
        )
        refuse_nonsense(self, made)
        self.caches.append(made)
        return made

    @recorded
    def tensorize(
        self,
        indices: Sequence[Index],
        mma_shape: MMAShape,
        num_total_passes: int = 1,
        use_static_offsets: bool = True,
        num_fused_passes: int | None = None,
        scheduling_policy: MMASchedulingPolicy = MMASchedulingPolicy.PASS_ORDER,
        prologue_op: Any = MMAFragmentOp.NONE,  # Any: a MMAFragmentOp, or a function of the fragment's elements
        prologue_arg: float | None = None,
        epilogue_op: Any = MMAFragmentOp.NONE,  # Any: as prologue_op
        epilogue_arg: float | None = None,
        saturating: bool = False,
    ) -> None:
        """Compute the three innermost loops (of M, N and K) with matrix instructions of a warp.

        The loops have the extents of `target.tensor_core_info.compute_tensor_splits(mma_shape, num_total_passes)`, (m,
        n, k times passes), around one statement `C[..] += A[..] * B[..]`. For P = `num_total_passes`, F =
        `num_fused_passes` (P unless given; it divides P) and b blocks of the shape, with G = P / F groups:

        - fragments: F of A and F of B, which the groups use one after another;
        - PASS_ORDER: b fragments of C. All are loaded, then each group loads F of A and F of B and multiplies F times
          for each block, then all are stored;
        - BLOCK_ORDER: one fragment of C. For each block it is loaded, the block's passes run, and it is stored; A and B
          are loaded once for all blocks when G = 1, and for each block again when G > 1.

        Pass p reads A at column p * k and B at row p * k. A cache of C with location MMA_FRAGMENT outside of the loop
        over K takes the loads and stores of C out of it.

        `prologue_op` is applied to C when it has been loaded, `epilogue_op` before it is stored: NONE, ReLU and
        ReLU_NoConditional (max(x, 0)), SET (x = prologue_arg or 0, in place of the load), SCALE (x * arg), or any
        function of device numbers; NONE and ReLU ignore an argument. Groups of passes are written one after another,
        with offsets known at compile time, and a fence for the compiler between them, across which it moves no reads of
        fragments, so that registers fall with F. `use_static_offsets=False` makes the groups a loop of the kernel:
        shorter code, whose offsets are computed.

        Integers are summed in int32, and C of fewer bits is stored modulo 2 to their number, as the nest computes it;
        `saturating` stores the nearest number of its type instead.

        Shapes of a warpgroup (M64N8K16 to M64N256K16, and those of K8 and K32, on sm_90a) are computed by four warps
        from shared memory: A and B have caches there, and `num_fused_passes` is left out. A may be any value that moves
        with M and K and is converted to B's type, `cast(W[i, k] * S[i], tw.bfloat16)`: each thread computes it in the
        registers from which it is multiplied. An A that is an element is taken from registers where a cache in
        MMA_FRAGMENT keeps it. A statement that is not a sum raises an error for them.

        A statement that is not a sum stays in its loops, and a warning says so: the threads of each warp then share the
        points of M and N, and loops bound to warps are bound to these threads.

        Raises `ScheduleError` for loops of other extents, element types that the shape does not take, F that does not
        divide P, a target without the shape, an operation that would run once for each iteration of K, and accesses
        that no matrix instruction supports: the error says which and why. Source: Accera, `Plan.tensorize`.
        """
        if not isinstance(indices, (Index, Iterable)):
            raise ScheduleError(f"tensorize takes the indices of M, N and K, not {shown(indices)}")
        tile = (indices,) if isinstance(indices, Index) else tuple(indices)
        try:
            self.tensorization: Tensorization | None = tensorization_of(
                self,
                tile,
                mma_shape,
                num_total_passes,
                num_fused_passes,
                scheduling_policy,
                use_static_offsets,
                (prologue_op, prologue_arg),
                (epilogue_op, epilogue_arg),
                saturating,
            )
        except NoProductError as error:
            if (
                mma_shape.is_of_warpgroup
                or prologue_op is not MMAFragmentOp.NONE
                or epilogue_op is not MMAFragmentOp.NONE
                or saturating
            ):
                raise
            self.__dict__.update(vars(dealt_to_lanes(self, tile)))
            warn_at(
                f"{error.summary}: the loops ({', '.join(map(str, tile))}) stay loops, whose points the threads of a "
                "warp share",
                error.location,
            )

    def with_parameters(self, values: Mapping[Any, Any]) -> Plan:  # Any: parameters or their names; their values
        """Return the plan with values for the parameters of `create_parameters` that it was declared with.

        Raises `ScheduleError` for a parameter without a value, and for a value that makes a step impossible.
        """
        made: Plan = Resolution(values).plan(self)
        return made

    def restarted(self, start: LoopNest) -> Plan:
        """Return a plan of another loop nest for the same target, on which nothing has been called."""
        return Plan(start, self.target)

    @hiding_frames
    def build(self, name: str | None = None, args: Sequence[Array | Dimension] | None = None) -> ScheduledKernel:
        """Return the kernel: called with arrays in the order of `args`, by default that in which they were declared.

        Sizes among `args` are numbers of the call. A view among them is called with an array of its shape and strides,
        in place of the array that it is a part of.

        NumPy arrays run in the simulator, CUDA arrays on their GPU. Raises `ScheduleError` if the plan cannot be built.
        """
        instance("Plan.build", "name", name, (str, type(None)), "a text")
        instance("Plan.build", "args", args, (list, tuple, type(None)), "a list of arrays")
        for array in args or ():
            instance("Plan.build", "each of args", array, (Array, Dimension), "an Array of the nest, or a Dimension")
        return ScheduledKernel(self.snapshot(), name or "scheduled", tuple(args or self.arguments))

    def report(self) -> Report:
        """Return counts from the kernel's IR: fragments, loads, stores, resources."""
        return self.build().report()

    def snapshot(self) -> Plan:
        """Return a copy that further calls on this plan do not change."""
        if self.is_delayed:
            raise waiting(self.start, self.steps)
        made = Plan(self._ordered(), self.target)
        made.bindings, made.crossings, made.vectorized = self.bindings, self.crossings, self.vectorized
        made.producer, made.blocks = self.producer, self.blocks
        if self.nest.is_unchecked:
            made.crossings = crossings(made.nest, self.bindings)
        made.caches, made.tensorization = list(self.caches), with_operands(self)
        made.caches = settled(made)
        return made

    def _ordered(self) -> LoopNest:
        """Return the nest, whose order no dependence forbids. Raises `ScheduleError` where one does.

        That of a nest without calls was asked when the plan was made.
        """
        if not self.nest.is_unchecked or not self.nest.called:
            return self.nest
        what = f"the order ({', '.join(map(str, self.nest.order))})"
        try:
            refuse_violations(self.nest, self.nest, what)
        except ScheduleError as error:
            raise ScheduleError(
                error.summary, location=error.location,
                help=f"{error.help}; a loop that a called function computes whole is erased: plan.erase_loops([...])",
            ) from None  # fmt: skip
        return replace(self.nest, is_unchecked=False)

    def _refuse_bound(self, index: Index, what: str) -> None:
        self.nest.position(index)
        if index in self.bound:
            raise ScheduleError(f"{what} of {index}, which is bound to {self._unit(index).name}")

    def _unit(self, index: Index) -> GridUnit:
        return next(binding.unit for binding in self.bindings if index in binding.indices)

    def to_dict(self) -> dict[str, Any]:  # Any: plain data
        """Return what `print(plan)` shows as plain data: loops, caches, statements, grid and block."""
        return plan_data(self._shown())

    def to_json(self) -> str:
        """Return `to_dict()` as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    def __str__(self) -> str:
        return plan_text(self._shown())

    def _shown(self) -> Plan:
        """Return the plan as it would be built, as far as it can be."""
        try:
            return self.snapshot()
        except ScheduleError:
            return self


def _chosen(where: Location | Auto | None) -> Location | None:
    """Return a location, None where the choice is left to the plan."""
    return None if isinstance(where, Auto) or where is Location.NONE else where


def _stages(double_buffer: bool, where: Location | None, stages: int | None, location: Location) -> int:
    if stages is not None:
        if double_buffer and stages != 2:
            raise ScheduleError(f"double_buffer has 2 stages, and pipeline_stages={stages}")
        return stages
    return 2 if double_buffer and not _is_through_registers(double_buffer, where, location) else 1


def _is_through_registers(double_buffer: bool, where: Location | None, location: Location) -> bool:
    """Whether the next iteration waits in registers. Raises `ScheduleError` for where it cannot wait."""
    if where is None or location is Location.MMA_FRAGMENT:
        return double_buffer and where is Location.PRIVATE
    if not double_buffer:
        raise ScheduleError(
            f"double_buffer_location={where}, and nothing is double-buffered",
            help="double_buffer=True, or leave it out",
        )
    if where is not location and (where is not Location.PRIVATE or location is Location.PRIVATE):
        raise ScheduleError(
            f"a cache in {location} would wait in {where} for the next iteration",
            help=f"double_buffer_location={location}"
            + ("" if location is Location.PRIVATE else ", or Location.PRIVATE: in registers"),
        )
    return where is not location


def _dtype(element_type: Any) -> Any:  # Any: what `tw.dtype` takes and returns
    return dtype(element_type).storage
