/* The engine for other languages: a model file, opened once and run by any number of threads at a time.
 *
 * Every function that can fail returns a code and, if it is not LCRBNN_OK, writes a sentence to `message` (at most
 * `size` bytes with the zero; it may be null). Nothing is thrown. Pointers to texts live as long as the model. */
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
enum { LCRBNN_UNFUSED = 1 }; /* flags of open: every node by itself, for tests */

typedef struct lcrbnn_model lcrbnn_model;

typedef struct {
  int32_t height, width, channels; /* of an image */
  int32_t classes, nodes, stages;
  uint64_t file_bytes, model_bytes, work_bytes; /* the file; weights in memory; what one run needs */
} lcrbnn_info;

/* 2: changes when this header does. */
LCRBNN_API int lcrbnn_abi(void) LCRBNN_NOEXCEPT;

/* `kernel` names a binary kernel, or is null for the best one. */
LCRBNN_API int lcrbnn_open(const char* path, int flags, const char* kernel, lcrbnn_model** out, char* message,
                           size_t size) LCRBNN_NOEXCEPT;
LCRBNN_API int lcrbnn_open_memory(const void* data, size_t bytes, int flags, const char* kernel, lcrbnn_model** out,
                                  char* message, size_t size) LCRBNN_NOEXCEPT;
/* No call may be running on the model. Null is fine. */
LCRBNN_API void lcrbnn_close(lcrbnn_model*) LCRBNN_NOEXCEPT;

LCRBNN_API void lcrbnn_get_info(const lcrbnn_model*, lcrbnn_info*) LCRBNN_NOEXCEPT;
/* Null for an index that is not there. */
LCRBNN_API const char* lcrbnn_model_name(const lcrbnn_model*) LCRBNN_NOEXCEPT;
LCRBNN_API const char* lcrbnn_class_name(const lcrbnn_model*, int index) LCRBNN_NOEXCEPT;
LCRBNN_API const char* lcrbnn_node_name(const lcrbnn_model*, int node) LCRBNN_NOEXCEPT;
LCRBNN_API const char* lcrbnn_node_op(const lcrbnn_model*, int node) LCRBNN_NOEXCEPT;
/* What computes a node: the name of a binary kernel (and "/limits" where its bits come from counts alone), "float"
 * or "float/points" (a stem), that of what passes over rows ("avx2", ...), "fused" for a node that is a step of an
 * earlier one's loop, "view" for one that costs nothing. */
LCRBNN_API const char* lcrbnn_node_kernel(const lcrbnn_model*, int node) LCRBNN_NOEXCEPT;
/* Height, width and channels of what a node makes; 0 if there is no such node. */
LCRBNN_API int lcrbnn_node_shape(const lcrbnn_model*, int node, int32_t shape[3]) LCRBNN_NOEXCEPT;

/* n images [h][w][c] to n rows of logits. Safe to call from many threads; the bits of the answer depend neither on
 * `threads` (1 to 256) nor on n. NaN and infinities pass through as IEEE 754 and the format say. */
LCRBNN_API int lcrbnn_run(lcrbnn_model*, const float* images, size_t n, float* logits, int threads, char* message,
                          size_t size) LCRBNN_NOEXCEPT;
/* The same for pictures of 8 bits. A byte from 0 to 255 is scaled to a pixel from 0 to the file's top, and the pixel
 * becomes a number as the file says: (pixel / top - mean) / std. */
LCRBNN_API int lcrbnn_run_pixels(lcrbnn_model*, const uint8_t* pixels, size_t n, float* logits, int threads,
                                 char* message, size_t size) LCRBNN_NOEXCEPT;

/* Seconds an image, by node, averaged over all runs since the last reset; steps of an earlier node's loop have 0.
 * Returns how many images that were. */
LCRBNN_API uint64_t lcrbnn_times(lcrbnn_model*, double* seconds, int reset) LCRBNN_NOEXCEPT;

/* For tests: what a node makes, [n][h'][w'][c'], and the whole-number sums of a bconv, [n][h'][w'][out]. */
LCRBNN_API int lcrbnn_value(lcrbnn_model*, const float* images, size_t n, int node, float* out, char* message,
                            size_t size) LCRBNN_NOEXCEPT;
LCRBNN_API int lcrbnn_accumulators(lcrbnn_model*, const float* images, size_t n, int node, int32_t* out, char* message,
                                   size_t size) LCRBNN_NOEXCEPT;

#ifdef __cplusplus
}
#endif
#endif
