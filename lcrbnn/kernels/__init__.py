"""GPU kernels that torch has no good one for, each beside the plain torch expression it must agree with.

A kernel's file `x_triton.py` imports Triton and is imported only when the kernel runs: on a CUDA device with Triton
installed, or, for tests, on the CPU with TRITON_INTERPRET=1 in the environment. The file `x.py` has the operator:
what it computes, on any device, and when the kernel takes over.
"""
