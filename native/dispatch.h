// Which binary kernel computes a convolution.
#pragma once
#include <string>

#include "bconv.h"

namespace lcrbnn {

// Kernels compiled into this build, the fastest first; the last one is the scalar one, which takes everything.
extern const BKernel* const bconv_kernels[];
extern const int bconv_kernel_count;

// The first kernel that this CPU supports, that takes the geometry and that agrees with the scalar one, each being
// tested when first asked for. A name (kernel_name) leaves only that one: the answer is null where it is not there or
// cannot do it.
const BKernel* choose_bconv(const BConv& c, const char* forced);

// `forced`, or else what the environment variable LCRBNN_KERNEL says; null where neither names a kernel.
const char* kernel_name(const char* forced);

// The names of the kernels that this CPU supports, as a sentence has them.
std::string kernels_here();

// Whether a kernel gives the scalar one's counts on a handful of small geometries.
bool bconv_agrees(const BKernel& kernel);

}  // namespace lcrbnn
