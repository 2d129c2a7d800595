"""Random products of every family of kernels, against float64: what `tw.matmul` and `tw.grouped_matmul` may be asked.

    python -m benchmarks.random_problems --backend sim --problems 20        small ones, in the simulator
    python -m benchmarks.random_problems --ahead                           compile what a GPU will run, without one
    python -m benchmarks.random_problems --problems 2000 --json out.json   on a GPU
    python -m benchmarks.random_problems --family hopper --only 17         one problem again
    python -m benchmarks.random_problems --sanitize memcheck racecheck     a sample under compute-sanitizer

`subjects` says what is drawn for a family, `kinds` draws what problems share that share kernels, `problems` draws one,
`products` and `groups` compute it twice and compare; `pool` has the processes that do so.
"""
