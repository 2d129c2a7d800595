"""The way from CUDA text to a running kernel: compiler, disk cache, driver, arrays, launches.

Nothing here knows the IR or the front end. No module of this package needs a GPU, or one of the NVIDIA
wheels, to be imported; what is missing is said when it is first used.
"""
