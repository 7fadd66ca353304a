"""GPU kernels for operations that are slow in torch, each with an equivalent torch implementation.

A file `x_triton.py` has the Triton kernels and imports Triton. It is imported only when a kernel runs. Kernels run on a
CUDA device with Triton installed. In tests, they also run on the CPU, with TRITON_INTERPRET=1 in the environment. The
file `x.py` has the operator: its result on any device, and the conditions under which the kernel is used.
"""
