// Many threads run one model: they get the same bits as one thread, and ThreadSanitizer must find no race.
//
//   race MODEL.bnn [THREADS] [CALLS]      default 8 threads of 1000 calls each; prints JSON
//
// Calls differ in images, number of images, number of threads and function: floats, pixels, inner values, times.
// tools/native/thread_sanitizer.py builds this with the sanitizer.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "capi.h"

namespace {

const size_t kImages = 12, kMost = 5;  // number of images, and maximum per call

struct Task {
  lcrbnn_model* model;
  lcrbnn_info info;
  size_t numbers;
  std::vector<float> images, outputs, from_pixels, value;
  std::vector<uint8_t> pixels;
  std::atomic<uint64_t> different{0}, failed{0}, images_run{0};

  // Makes a call that depends only on its number.
  void call(uint64_t number) {
    const uint64_t mixed = (number + 1) * 0x9E3779B97F4A7C15;
    const size_t n = mixed >> 33 & 7 ? 1 + (mixed >> 40) % kMost : 0, first = (mixed >> 48) % (kImages - kMost),
                 out = size_t(info.output_numbers);
    const int threads = 1 + int((mixed >> 20) % 3);
    const bool bytes = (mixed >> 24) % 4 == 0;
    std::vector<float> made(n * out);
    const int code = bytes ? lcrbnn_run_pixels(model, &pixels[first * numbers], n, made.data(), threads, nullptr, 0)
                           : lcrbnn_run(model, &images[first * numbers], n, made.data(), threads, nullptr, 0);
    failed += code != LCRBNN_OK;
    images_run += n;
    const std::vector<float>& want = bytes ? from_pixels : outputs;
    different += n && memcmp(made.data(), &want[first * out], made.size() * 4) != 0;
    if (number % 50 == 0) {
      std::vector<float> inside(value.size());
      failed += lcrbnn_value(model, images.data(), 1, 0, inside.data(), nullptr, 0) != LCRBNN_OK;
      different += memcmp(inside.data(), value.data(), value.size() * 4) != 0;
      std::vector<double> seconds(size_t(info.nodes));
      lcrbnn_times(model, seconds.data(), number % 100 == 0);
    }
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 4) return fprintf(stderr, "usage: race MODEL.bnn [THREADS] [CALLS]\n"), 2;
  const int threads = argc > 2 ? atoi(argv[2]) : 8, calls = argc > 3 ? atoi(argv[3]) : 1000;
  char message[320];
  Task task{};
  if (lcrbnn_open(argv[1], 0, nullptr, &task.model, message, sizeof message))
    return fprintf(stderr, "%s\n", message), 1;
  lcrbnn_get_info(task.model, &task.info);
  task.numbers = size_t(task.info.height) * size_t(task.info.width) * size_t(task.info.channels);
  const size_t answers = kImages * size_t(task.info.output_numbers);
  int32_t shape[3] = {};
  lcrbnn_node_shape(task.model, 0, shape);
  task.images.resize(kImages * task.numbers), task.pixels.resize(kImages * task.numbers);
  task.outputs.resize(answers), task.from_pixels.resize(answers),
      task.value.resize(size_t(shape[0]) * size_t(shape[1]) * size_t(shape[2]));
  uint64_t state = 88172645463325252u;
  for (size_t i = 0; i < task.images.size(); ++i) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    task.pixels[i] = uint8_t(state), task.images[i] = float(state % 4001) / 1000 - 2;
  }
  if (lcrbnn_run(task.model, task.images.data(), kImages, task.outputs.data(), 1, message, sizeof message) ||
      lcrbnn_run_pixels(task.model, task.pixels.data(), kImages, task.from_pixels.data(), 1, message, sizeof message))
    return fprintf(stderr, "%s\n", message), 1;
  lcrbnn_close(task.model);  // the threads must create spaces and plans again
  if (lcrbnn_open(argv[1], 0, nullptr, &task.model, message, sizeof message))
    return fprintf(stderr, "%s\n", message), 1;
  lcrbnn_model* other = nullptr;
  if (lcrbnn_open(argv[1], LCRBNN_UNFUSED, nullptr, &other, message, sizeof message) ||
      lcrbnn_value(other, task.images.data(), 1, 0, task.value.data(), message, sizeof message))
    return fprintf(stderr, "%s\n", message), 1;
  lcrbnn_close(other);
  std::vector<std::thread> all;
  for (int t = 0; t < threads; ++t)
    all.emplace_back([&task, t, calls] {
      for (int i = 0; i < calls; ++i) task.call(uint64_t(t) * uint64_t(calls) + uint64_t(i));
    });
  for (std::thread& thread : all) thread.join();
  lcrbnn_close(task.model);
  printf("{\"threads\": %d, \"calls\": %d, \"images\": %llu, \"different\": %llu, \"failed\": %llu}\n", threads,
         threads * calls, (unsigned long long)task.images_run.load(), (unsigned long long)task.different.load(),
         (unsigned long long)task.failed.load());
  return task.different || task.failed ? 1 : 0;
}
