/* C interface of the engine: a model file is opened once, and any number of threads can run it at the same time.
 *
 * Every function that can fail returns a code. If it is not LCRBNN_OK, the function writes an error message of at most
 * `size` bytes, including the final zero, to `message`, which may be null. No function throws. Returned texts are valid
 * until the model is closed. */
#ifndef LCRBNN_CAPI_H
#define LCRBNN_CAPI_H
#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define LCRBNN_API __declspec(dllexport)
#else
#define LCRBNN_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
#define LCRBNN_NOEXCEPT noexcept
extern "C" {
#else
#define LCRBNN_NOEXCEPT
#endif

enum { LCRBNN_OK = 0, LCRBNN_BAD_FILE = 1, LCRBNN_BAD_CALL = 2, LCRBNN_NO_MEMORY = 3 };
enum { LCRBNN_UNFUSED = 1 }; /* flag of open: compute every node separately, for tests */

typedef struct lcrbnn_model lcrbnn_model;

typedef struct {
  int32_t height, width, channels; /* of the input */
  int32_t classes, nodes, stages, outputs;
  uint64_t output_numbers; /* float32 numbers per image that a run writes, for all outputs */
  uint64_t file_bytes, model_bytes, work_bytes; /* file size; memory of the weights; memory of one run */
} lcrbnn_info;

/* Version of this interface, now 3. It changes with every incompatible change of this header. */
LCRBNN_API int lcrbnn_abi(void) LCRBNN_NOEXCEPT;

/* `kernel` is the name of a binary kernel, or null for the fastest one. */
LCRBNN_API int lcrbnn_open(const char* path, int flags, const char* kernel, lcrbnn_model** out, char* message,
                           size_t size) LCRBNN_NOEXCEPT;
LCRBNN_API int lcrbnn_open_memory(const void* data, size_t bytes, int flags, const char* kernel, lcrbnn_model** out,
                                  char* message, size_t size) LCRBNN_NOEXCEPT;
/* Frees the model; no call may be running on it. The model may be null. */
LCRBNN_API void lcrbnn_close(lcrbnn_model*) LCRBNN_NOEXCEPT;

LCRBNN_API void lcrbnn_get_info(const lcrbnn_model*, lcrbnn_info*) LCRBNN_NOEXCEPT;
/* These return null if the index is out of range. */
LCRBNN_API const char* lcrbnn_model_name(const lcrbnn_model*) LCRBNN_NOEXCEPT;
LCRBNN_API const char* lcrbnn_class_name(const lcrbnn_model*, int index) LCRBNN_NOEXCEPT;
LCRBNN_API const char* lcrbnn_node_name(const lcrbnn_model*, int node) LCRBNN_NOEXCEPT;
LCRBNN_API const char* lcrbnn_node_op(const lcrbnn_model*, int node) LCRBNN_NOEXCEPT;
/* Name of the kernel that computes a node: a binary kernel (with "/limits" if its output signs are comparisons of
 * integer counts), "float" or "float/points" (fast convolution for stems), "wide" (a bconv with more than 65,535 terms per
 * sum), the instruction set of a row operation ("avx2", ...), "fused" if an earlier node's loop computes the node, or "view" if it needs no computation. */
LCRBNN_API const char* lcrbnn_node_kernel(const lcrbnn_model*, int node) LCRBNN_NOEXCEPT;
/* Writes height, width and channels of the output of a node. Returns 0 if there is no such node. */
LCRBNN_API int lcrbnn_node_shape(const lcrbnn_model*, int node, int32_t shape[3]) LCRBNN_NOEXCEPT;

/* Name of an output; null if there is no such output. */
LCRBNN_API const char* lcrbnn_output_name(const lcrbnn_model*, int output) LCRBNN_NOEXCEPT;
/* Writes height, width and channels of an output. Returns 0 if there is no such output. */
LCRBNN_API int lcrbnn_output_shape(const lcrbnn_model*, int output, int32_t shape[3]) LCRBNN_NOEXCEPT;

/* Computes the outputs of n images [h][w][c]. For each image, the outputs [h'][w'][c'] are written one after another,
 * in the order of the file, as lcrbnn_info.output_numbers numbers. The only output of a classifier is its logits,
 * [classes]. Several threads may call it at the same time. The bits of the outputs depend neither on `threads` (1 to
 * 256) nor on n. NaN and infinities propagate as IEEE 754 and the format define. */
LCRBNN_API int lcrbnn_run(lcrbnn_model*, const float* images, size_t n, float* outputs, int threads, char* message,
                          size_t size) LCRBNN_NOEXCEPT;
/* The same for 8-bit images. Each byte from 0 to 255 is scaled to a pixel from 0 to the file's top, and then
 * normalised: (pixel / top - mean) / std. */
LCRBNN_API int lcrbnn_run_pixels(lcrbnn_model*, const uint8_t* pixels, size_t n, float* outputs, int threads,
                                 char* message, size_t size) LCRBNN_NOEXCEPT;

/* Writes seconds per image for each node, averaged over all runs since the last reset; fused nodes have 0. Returns the
 * number of images. */
LCRBNN_API uint64_t lcrbnn_times(lcrbnn_model*, double* seconds, int reset) LCRBNN_NOEXCEPT;

/* For tests: the output of a node, [n][h'][w'][c'], and the integer sums of a bconv, [n][h'][w'][out]. */
LCRBNN_API int lcrbnn_value(lcrbnn_model*, const float* images, size_t n, int node, float* out, char* message,
                            size_t size) LCRBNN_NOEXCEPT;
LCRBNN_API int lcrbnn_accumulators(lcrbnn_model*, const float* images, size_t n, int node, int32_t* out, char* message,
                                   size_t size) LCRBNN_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
