// Selects the kernel of a binary convolution.
#pragma once
#include <string>

#include "bconv.h"

namespace lcrbnn {

// Kernels of this build, the fastest first. The last one is the scalar kernel, which supports every geometry.
extern const BKernel* const bconv_kernels[];
extern const int bconv_kernel_count;

// Returns the first kernel that this CPU supports, that supports the geometry, and that agrees with the scalar kernel.
// Each kernel is tested when it is first needed. With a name (kernel_name), only this kernel is considered; the result
// is null if it is not available.
const BKernel* choose_bconv(const BConv& c, const char* forced);

// Returns `forced`, or else the value of the environment variable LCRBNN_KERNEL; null if neither names a kernel.
const char* kernel_name(const char* forced);

// Returns the names of the kernels that this CPU supports, separated by commas.
std::string kernels_here();

// Returns whether a kernel gives the counts of the scalar kernel for some small geometries.
bool bconv_agrees(const BKernel& kernel);

}  // namespace lcrbnn
