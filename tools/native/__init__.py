"""Tools that build and test the C++ engine, including its kernels, fuzzing, thread safety and WebAssembly."""
