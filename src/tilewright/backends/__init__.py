"""What a kernel is turned into: CUDA C++ for a GPU, or a run in the simulator."""
