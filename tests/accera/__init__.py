"""Programs that were written for Accera, run on `tilewright.schedule`.

`python -m tests.accera dsl_tests.py smoke_tests.py mfma_tests.py` takes paths to Accera's own tests, which are not part of
this repository, and says of each of them whether it works here. Accera's words are in `words`: thin modules that give each
name of Accera's Python layer the class or function of this library that it stands for. `running` runs each test in a process
of its own, `checking` compares what a kernel computes with what the untransformed nests compute, `host` compiles the
text of kernels of one thread for the CPU, so that large arrays take seconds.
"""
