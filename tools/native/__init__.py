"""Tools that build and test the C++ engine: kernels, fuzzing, thread safety, WebAssembly."""
