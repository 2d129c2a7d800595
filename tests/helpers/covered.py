"""Tests that are left to the slow ones because others of the suite run the same code, and which these are.

Each takes half a second of a core or more: most of it traces, simulates or compiles what its neighbour does too, with
another number, type or tile. A name without brackets stands for all cases.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

# What is wrong with the table, as far as the files of this run show it.
WRONG = pytest.StashKey[list[str]]()

# By file: the test or case that is slow, and what the suite runs in its place.
COVERED: dict[str, dict[str, str]] = {
    "tests/conformance/test_ends_of_rows.py": {
        "test_products_of_groups[sim-K-bf16-1]": "test_products_of_groups[sim-K, ping-pong-float32-7]",
        "test_products[sim-cluster-bf16-1]": "test_products[sim-splits-bf16-2]",
    },
    "tests/conformance/test_grouped_hopper.py": {
        # The same configuration, with a group of each kind beside others.
        "test_ragged_products[sim-K, ping-pong]": "test_a_group_does_not_meet_the_next_one[sim-K, ping-pong]",
        "test_rows_of_no_group_are_left_alone[sim-rows]": "test_a_group_is_all_that_is_written[sim-rows]",
    },
    "tests/conformance/test_mathematics.py": {
        "test_cube_roots_do_not_depend_on_the_c_library[1]": "test_cube_roots_do_not_depend_on_the_c_library[5]",
        "test_cube_roots_do_not_depend_on_the_c_library[-3]": "test_cube_roots_do_not_depend_on_the_c_library[0]",
    },
    "tests/conformance/test_matmul_parts.py": {
        # tests/unit/kernels/test_precision.py runs it too.
        "test_what_has_no_parts_is_computed_as_ieee_does[sim-tf32x3]": "test_hard_numbers[sim-tf32x3]",
    },
    "tests/conformance/test_matrix_kernels.py": {
        "test_parts_are_added_in_the_documented_order[sim-8]": "test_parts_are_added_in_the_documented_order[sim-13]",
    },
    "tests/conformance/test_moving_kernels.py": {
        "test_decode_attention[sim-bfloat16-(100,)-(2, 1, 64)-16-{'factor': 40.0, 'splits': 2}]":
            "test_decode_attention[sim-float16-(100,)-(2, 1, 64)-16-{'factor': 40.0, 'splits': 2}]",
    },
    "tests/conformance/test_quantized.py": {
        "test_products_with_packed_weights[sim-8--1-bfloat16]": "test_products_with_packed_weights[sim-8-64-bfloat16]",
    },
    "tests/conformance/test_scan_kernels.py": {
        "test_case[prefix-sum,-140003-float32]": "test_case[prefix-sum,-140003-int32]",
        "test_embedding[sim-int64-1030-bfloat16]": "test_embedding[sim-int32-1030-float16]",
    },
    "tests/conformance/test_schedule.py": {
        "test_pipelined_products_on_tensor_cores[sim-bfloat16-4-True]":
            "test_pipelined_products_on_tensor_cores[sim-float16-4-True]",
        "test_pipelined_products_on_tensor_cores[sim-bfloat16-4-False]":
            "test_pipelined_products_on_tensor_cores[sim-float16-2-False]",
    },
    "tests/fuzz/test_command_line.py": {
        "test_expressions_end_soon[56]": "test_expressions_end_soon[0]",
        "test_expressions_end_soon[112]": "test_expressions_end_soon[152]",
    },
    "tests/fuzz/test_simulator.py": {
        "test_kernels_compile[1]": "test_kernels_compile[0]",
        "test_kernels_compile[3]": "test_kernels_compile[2]",
    },
    "tests/property/test_integers_against_isl.py": {
        "test_two_thousand[3]": "test_two_thousand[0]",
    },
    "tests/unit/distributed/test_distributed_products.py": {
        # All of a product is gathered from what is scattered.
        "test_two_ranks_compute_the_whole_product[all]": "test_two_ranks_compute_the_whole_product[scatter]",
    },
    "tests/unit/distributed/test_exchanged.py": {
        "test_nothing_spills[matmul_gathered, bfloat16, KK, 16, 128x256x64, cooperative, 4 stages]":
            "test_nothing_spills[matmul_gathered, float8_e4m3fn, KK, 2, 128x64x128, cooperative, 8 stages]",
    },
    "tests/unit/instructions/test_inline_ptx.py": {
        "test_texts_that_look_like_code_compile[\\n\\n  add.u32 %0, %1, 1\\n\\n]":
            "test_texts_that_look_like_code_compile[add.u32 %0, %1, 1; // ends with \\\\]",
    },
    "tests/unit/instructions/test_product_fences.py": {
        "test_the_assembler_has_nothing_to_say[0-1-1-SM90_64x200x16_F32F16F16_SS]":
            "test_the_assembler_has_nothing_to_say[3-1-2-SM90_64x200x16_F32F16F16_SS]",
        "test_random_programs_that_drew_advisories[493]": "test_random_programs_that_drew_advisories[247]",
    },
    "tests/unit/instructions/test_scalar_instructions.py": {
        "test_a_rounded_float_becomes_a_narrow_integer_in_one_instruction[int8-sm_80]":
            "test_a_rounded_float_becomes_a_narrow_integer_in_one_instruction[int32-sm_80]",
    },
    "tests/unit/instructions/test_sparse_wgmma.py": {
        "test_only_the_lanes_of_the_selector_need_metadata[1]": "test_only_the_lanes_of_the_selector_need_metadata[0]",
    },
    "tests/unit/kernels/test_attention.py": {
        "test_gradients_of_q_may_have_any_strides[64-65-1]": "test_gradients_of_q_may_have_any_strides[44-48-0]",
    },
    "tests/unit/kernels/test_dropout.py": {
        "test_a_seed_in_memory[uint32]": "test_a_seed_in_memory[int64]",
    },
    "tests/unit/kernels/test_functions.py": {
        "test_attributes_are_read_anew[1]": "test_attributes_are_read_anew[0]",
    },
    "tests/unit/kernels/test_further.py": {
        "test_scales_that_are_computed_on_the_way[(1, 1, 1)]":
            "test_scales_of_a_result_of_one_column_and_of_one_that_is_contiguous_along_columns",
        "test_values[bfloat16-0.01-(1, 1, 1)]": "test_values[bfloat16-0.01-(1, 300, 8)]",
        "test_layouts_and_batches[rows]": "test_values[float32-1e-05-(70, 50, 33)]",
    },
    "tests/unit/kernels/test_gated.py": {
        "test_warpgroups_with_8_bit_floats_and_scales[transposed]":
            "test_warpgroups_with_8_bit_floats_and_scales[transposed, alternating]",
        "test_further_results_and_dropout[interleaved]": "test_further_results_and_dropout[halves]",
        "test_vectors_and_empty_results[interleaved]": "test_vectors_and_empty_results[halves]",
    },
    "tests/unit/kernels/test_gemv.py": {
        "test_batches_and_results_that_lie_anywhere[(3, 4, 50, 40)]":
            "test_batches_and_results_that_lie_anywhere[(2, 50, 4, 40)]",
        "test_products[(1, 40, 300)-False-0]": "test_products[(1, 40, 300)-True-14]",
        "test_loads_are_wide_and_nothing_spills[1-K-dtype0-the fastest by prediction]":
            "test_loads_are_wide_and_nothing_spills[8-K-dtype6-the fastest by prediction]",
        "test_products[(70, 6, 257)-False-11]": "test_products[(70, 6, 257)-False-14]",
        "test_products[(8, 33, 64)-True-11]": "test_products[(5, 130, 1)-True-7]",
    },
    "tests/unit/kernels/test_grouped_hopper.py": {
        "test_results_of_more_than_2_to_the_31_elements[K-extents1-64]":
            "test_results_of_more_than_2_to_the_31_elements[M-extents0-8]",
        "test_nothing_spills[K, MM, 128x256x64, cooperative, 4 stages]":
            "test_nothing_spills[M, KM, 128x256x64, cooperative, 4 stages]",
    },
    "tests/unit/kernels/test_hopper.py": {
        "test_nothing_spills[bf16, KK, with C, 128x256x64, cooperative, 4 stages, clusters of 2]":
            "test_nothing_spills[bf16, KK, with C, 128x256x64, cooperative, 4 stages, clusters of 2, stream-K]",
    },
    "tests/unit/kernels/test_matmul.py": {
        "test_epilogue[<lambda>-<lambda>-F6]": "test_epilogue[<lambda>-<lambda>-C0]",
        "test_out_may_be_what_is_added[epilogue-C]": "test_out_may_be_what_is_added[c-C]",
    },
    "tests/unit/kernels/test_matmul_blocks.py": {
        "test_blocks_beside_other_scales[(40, 1)-(2, 1)]": "test_blocks_beside_other_scales[()-(2, 24)]",
        "test_scales_by_tma[few rows-blocks of columns]": "test_scales_by_tma[few rows-each column]",
        "test_any_number_of_tiles_of_k[128-16]": "test_any_number_of_tiles_of_k[128-640]",
        "test_blocks_of_both[D-blocks of rows-blocks of columns]":
            "test_blocks_of_both[D^T-blocks of rows-blocks of columns]",
        "test_blocks_of_both[D^T-each row-each column]": "test_blocks_of_both[D-each row-each column]",
        "test_hopper[splits-blocks of columns]": "test_hopper[splits-each column]",
    },
    "tests/unit/kernels/test_matmul_scales.py": {
        "test_one_scale[0.5]": "test_one_scale[scale3]",
    },
    "tests/unit/kernels/test_matmul_tune.py": {
        # tests/unit/kernels/test_matmul_device.py has the launches of a product.
        "test_a_prepared_product_is_the_product_of_what_the_arrays_hold_when_it_is_called[launches]":
            "test_a_prepared_product_is_the_product_of_what_the_arrays_hold_when_it_is_called[splits]",
    },
    "tests/unit/kernels/test_multiply_adds.py": {
        "test_tilings_multiply[KM-(64, 256, 8)-(1, 4)]": "test_tilings_multiply[KM-(64, 64, 8)-(1, 2)]",
    },
    "tests/unit/kernels/test_precision.py": {
        "test_bits_are_those_of_the_definition[tf32x3-KK]": "test_bits_are_those_of_the_definition[bf16x9-KN]",
    },
    "tests/unit/kernels/test_quantized.py": {
        "test_fractions_are_exact_up_to_float32_sums[bfloat16]": "test_fractions_are_exact_up_to_float32_sums[float16]",
        "test_gptq[in order-gptq_v2-8]": "test_gptq[act-gptq_v2-8]",
    },
    "tests/unit/kernels/test_row_code.py": {
        "test_what_is_interleaved_is_whole_vectors[False]": "test_what_is_interleaved_is_whole_vectors[True]",
    },
    "tests/unit/kernels/test_stream_k.py": {
        "test_products[7-1-(250, 30, 200)]": "test_products[6-2-(300, 30, 200)]",
    },
    "tests/unit/kernels/test_tiny.py": {
        "test_addends_scales_and_epilogues[0-float16]": "test_addends_scales_and_epilogues[0-float32]",
        "test_addends_scales_and_epilogues[1-float16]": "test_addends_scales_and_epilogues[1-float32]",
        "test_addends_scales_and_epilogues[2-float16]": "test_addends_scales_and_epilogues[2-float32]",
        "test_addends_scales_and_epilogues[3-float16]": "test_addends_scales_and_epilogues[3-float32]",
        "test_nothing_spills[bfloat16-sm_90a]": "test_nothing_spills[int8-sm_90a]",
    },
    "tests/unit/language/test_guarded_tiles.py": {
        "test_partitions_of_products_know_where_they_are[B]": "test_partitions_of_products_know_where_they_are[A]",
    },
    "tests/unit/language/test_pipeline.py": {
        "test_wait_leaves_all_but_the_oldest_under_way[3]": "test_wait_leaves_all_but_the_oldest_under_way[2]",
        "test_wait_leaves_all_but_the_oldest_under_way[4]": "test_wait_leaves_all_but_the_oldest_under_way[5]",
    },
    "tests/unit/language/test_tiles_contract.py": {
        "test_the_machine_multiplies_and_adds_at_once[of_the_block]":
            "test_the_machine_multiplies_and_adds_at_once[of_reduction]",
    },
    "tests/unit/runtime/test_repeated_exchanges.py": {
        "test_other_layouts_are_kinds_of_their_own[matmul_reduce_scatter]":
            "test_other_layouts_are_kinds_of_their_own[all_gather_matmul]",
    },
    "tests/unit/schedule/test_caches.py": {
        "test_caches_inside_of_vectorized_loops[jjj ii-1-Location.GLOBAL]":
            "test_caches_inside_of_vectorized_loops[jjj-1-None]",
        "test_many_vectors_a_thread[shape1-Location.SHARED-Strategy.BLOCKED]":
            "test_many_vectors_a_thread[shape0-Location.SHARED-Strategy.BLOCKED]",
    },
    "tests/unit/schedule/test_register_operands.py": {
        "test_computed[uint8, converted]": "test_computed[int8 weights, scaled]",
    },
    "tests/unit/schedule/test_tensor_kernels.py": {
        "test_the_fast_plan_keeps_to_its_registers[sm_80]": "test_the_fast_plan_keeps_to_its_registers[sm_90a]",
    },
    "tests/unit/schedule/test_tensorize.py": {
        "test_passes_and_groups[groups31-instruction31-BLOCK_ORDER]":
            "test_passes_and_groups[groups11-instruction11-BLOCK_ORDER]",
    },
    "tests/unit/schedule/test_warpgroup_plans.py": {
        "test_rows_that_end_between_16_bytes_leave_by_threads[132]":
            "test_rows_that_end_between_16_bytes_leave_by_threads[131]",
    },
    "tests/unit/test_cli_failures.py": {
        "test_a_closed_output_is_no_error[draw-| true]": "test_a_closed_output_is_no_error[draw->&- 2>&-]",
    },
    "tests/unit/test_examples.py": {
        "test_case[matmul-double-buffered-rows]": "test_case[matmul-double-buffered-16-x-16-threads]",
        "test_case[matmul-simple]": "test_case[matmul-row-major]",
    },
    "tests/unit/test_hopper_examples.py": {
        "test_case[ring, float16, 2 stages]": "test_case[ring, float16, 3 stages]",
    },
    "tests/unit/test_hopper_products.py": {
        "test_kernels_compile_cleanly[05_persistent-matmul_persistent-(tw.float8_e4m3fn,)]":
            "test_kernels_compile_cleanly[05_persistent-matmul_persistent-(tw.float32,)]",
        # The same kernel, of which each block of K has a scale.
        "test_case[fp8, promoted, 1 blocks]": "test_a_scale_belongs_to_its_block",
        "test_accumulators_stay_in_their_registers[07_ping_pong-matmul_ping_pong-()]":
            "test_accumulators_stay_in_their_registers[05_persistent-matmul_persistent-(tw.float8_e4m3fn,)]",
    },
    "tests/unit/test_pickling.py": {
        "test_plans_and_packages_come_back_whole[protocol 2]": "test_plans_and_packages_come_back_whole[protocol 5]",
    },
    "tests/unit/test_schedule_examples.py": {
        "test_the_fast_plan_takes_multiples_of_its_tile[extents4-2]":
            "test_the_fast_plan_takes_multiples_of_its_tile[extents0-2]",
    },
    "tests/unit/test_sgemm_rungs.py": {
        "test_any_extents[13_tensor_cores_tf32-matmul-(33, 31, 65)]":
            "test_any_extents[14_tensor_cores_bf16-matmul-(33, 31, 65)]",
        "test_case[tiles of 8 x 8, elements]": "test_case[tiles of 8 x 8, tiles]",
        "test_no_spills[12_asynchronous_copies-multiply_tiles-False]":
            "test_no_spills[14_tensor_cores_bf16-multiply_tiles-False]",
        "test_other_tiles[14-{'block': (128, 128, 64)}]": "test_case[tensor cores, bfloat16]",
    },
    "tests/unit/test_tensorcore_examples.py": {
        "test_case[warp-specialised, bfloat16, 2 stages]": "test_case[warp-specialised, float16, 4 stages]",
        "test_case[multistage, 32 of K]": "test_case[multistage, both by columns]",
        "test_few_tiles_of_k_for_specialised_warps[4-160]": "test_few_tiles_of_k_for_specialised_warps[2-160]",
        "test_planned_has_no_conflicts[FP64]": "test_planned_has_no_conflicts[FP64_HOPPER]",
        "test_fp64_compiles_without_spills[FP64-sm_90a]": "test_fp64_compiles_without_spills[FP64-sm_80]",
        "test_multistage_compiles_without_spills[tile6-KK-True-sm_80]":
            "test_multistage_compiles_without_spills[tile7-MK-False-sm_80]",
    },
}  # fmt: skip


def mark_what_is_covered(items: Iterable[pytest.Item]) -> list[str]:
    """Mark the tests of the table as slow. After the spreads, which would run a neighbour in the place of each.

    Return what is wrong with the table, of the files that were collected: tests that are not there, and neighbours that
    are not run.
    """
    slow: dict[str, dict[str, bool]] = {}
    for item in items:
        path, _, name = item.nodeid.partition("::")
        if (covered := COVERED.get(path)) is not None:
            if name in covered or name.partition("[")[0] in covered:
                item.add_marker("slow")
            is_slow = item.get_closest_marker("slow") is not None
            slow.setdefault(path, {}).update({name: is_slow, name.partition("[")[0]: is_slow})
    return [
        f"{path}: {test} is covered by {other}"
        for path, known in slow.items()
        for test, other in COVERED[path].items()
        if test not in known or known.get(other, True)
    ]
