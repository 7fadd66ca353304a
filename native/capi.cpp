#include "capi.h"

#include <cstring>
#include <memory>
#include <new>

#include "run.h"
#include "threads.h"

using namespace lcrbnn;

// Converts exceptions of standard containers to error codes. A build without exceptions aborts instead.
#if defined(__cpp_exceptions)
#define GUARDED(...)                            \
  try {                                         \
    __VA_ARGS__                                 \
  } catch (const std::bad_alloc&) {             \
    error.memory("there is not enough memory"); \
  } catch (...) {                               \
    error.memory("an unexpected error");        \
  }
#else
#define GUARDED(...) {__VA_ARGS__}
#endif

namespace {

// The memory of one running call: a workspace, and a float image for pixel inputs. It is kept for later calls.
struct Space {
  Workspace work;
  float* image = nullptr;
  Space* next = nullptr;
};

void free_space(Space* s) {
  free(s->work.arena);
  free(s->work.tile);
  free(s->work.nanoseconds);
  free(s->image);
  delete s;
}

Space* new_space(const Plan& plan, size_t image) {
  Space* s = new (std::nothrow) Space;
  if (!s) return nullptr;
  const size_t times = plan.stages.size() * sizeof(uint64_t);
  s->work.arena = static_cast<char*>(aligned_new(size_t(plan.arena)));
  s->work.tile = static_cast<char*>(aligned_new(size_t(plan.tile)));
  s->work.nanoseconds = static_cast<uint64_t*>(aligned_new(times));
  s->image = static_cast<float*>(aligned_new(image * 4));
  if (!s->work.arena || !s->work.tile || !s->work.nanoseconds || !s->image) {
    free_space(s);
    return nullptr;
  }
  memset(s->work.nanoseconds, 0, times);
  return s;
}

}  // namespace

struct lcrbnn_model {
  Graph graph;
  Memory memory;
  std::vector<NodeData> data;
  Plan plan;
  const RowOps* rows = nullptr;
  bool fuse = true;
  uint64_t file_bytes = 0;
  uint64_t output_numbers = 0;       // per image
  std::vector<float> levels;         // [channel][256]: normalised value of each pixel
  std::vector<std::string> kernels;  // by node

  Mutex mutex;  // protects all members below
  Space* spaces = nullptr;
  std::vector<uint64_t> nanoseconds;  // by stage
  uint64_t images = 0;
  std::unique_ptr<Plan> debug;  // keeps every value, for tests

  ~lcrbnn_model() {
    while (spaces) {
      Space* s = spaces;
      spaces = s->next;
      free_space(s);
    }
  }
};

namespace {

int report(const Error& error, char* message, size_t size) {
  if (error.code && message && size) snprintf(message, size, "%s", error.text);
  return error.code;
}

void name_kernels(lcrbnn_model& m) {
  for (size_t i = 0; i < m.graph.nodes.size(); ++i) {
    const int stage = m.plan.stage_of[i];
    std::string name = "view";
    if (stage >= 0) {
      const Stage& s = m.plan.stages[size_t(stage)];
      if (s.node != int(i) || s.feeder >= 0) name = "fused";
      else if (s.head == Head::bconv) name = std::string(m.data[i].kernel->name) + (s.limits ? "/limits" : "");
      else if (s.head == Head::conv) name = m.data[i].fconv.points ? "float/points" : "float";
      else name = m.rows->name;
    }
    m.kernels.push_back(std::move(name));
  }
}

bool open_model(const uint8_t* data, size_t bytes, int flags, const char* kernel, lcrbnn_model& m, Error& error) {
  if (flags & ~LCRBNN_UNFUSED) return error.call("unknown flags: %d", flags);
  if (kernel && !*kernel) kernel = nullptr;
  m.fuse = !(flags & LCRBNN_UNFUSED);
  m.file_bytes = bytes;
  m.memory.allow(bytes);
  m.rows = &choose_rows(kernel);
  if (!read_graph(data, bytes, m.graph, error) || !load_nodes(m.graph, data, kernel, m.memory, m.data, error) ||
      !make_plan(m.graph, m.data, m.fuse, false, m.plan, error))
    return false;
  m.nanoseconds.assign(m.plan.stages.size(), 0);
  const size_t levels = m.graph.mean.size() * 256;
  if (!m.memory.charge(levels * sizeof(float))) return error.memory("the model needs too much memory");
  m.levels.reserve(levels);
  const float scale = m.graph.top / 255.0f;  // 8-bit pixels end at 255, pixels of the file at its top
  for (size_t c = 0; c < m.graph.mean.size(); ++c)
    for (int pixel = 0; pixel < 256; ++pixel)
      m.levels.push_back((float(pixel) * scale / m.graph.top - m.graph.mean[c]) / m.graph.deviation[c]);
  for (const Output& output : m.graph.outputs) m.output_numbers += m.graph.values[size_t(output.value)].numbers();
  name_kernels(m);
  return true;
}

int open_any(const char* path, const void* data, size_t bytes, int flags, const char* kernel, lcrbnn_model** out,
             char* message, size_t size) {
  Error error;
  if (!out || (!path && !data)) {
    error.call("open needs a file and a pointer for the model");
    return report(error, message, size);
  }
  *out = nullptr;
  lcrbnn_model* created = nullptr;
  GUARDED({
    std::vector<uint8_t> own;
    created = new lcrbnn_model;
    if (!path || read_file(path, own, error)) {
      if (path) data = own.data(), bytes = own.size();
      if (open_model(static_cast<const uint8_t*>(data), bytes, flags, kernel, *created, error)) *out = created;
    }
  })
  if (!*out || error.code) {
    *out = nullptr;
    delete created;
    if (!error.code) error.memory("there is not enough memory");
  }
  return report(error, message, size);
}

// The spaces of a call. At its end they return to the model, and their times are added up.
struct Lease {
  lcrbnn_model& model;
  Space* list[kMostThreads] = {};
  int count = 0;

  bool take(int wanted) {
    {
      const Lock lock(model.mutex);
      while (count < wanted && model.spaces) {
        list[count++] = model.spaces;
        model.spaces = model.spaces->next;
      }
    }
    for (; count < wanted; ++count)
      if (!(list[count] = new_space(model.plan, model.graph.values[0].numbers()))) return count > 0;
    return true;
  }

  void give(uint64_t images) {
    const Lock lock(model.mutex);
    model.images += images;
    for (int i = 0; i < count; ++i) {
      for (size_t s = 0; s < model.nanoseconds.size(); ++s)
        model.nanoseconds[s] += list[i]->work.nanoseconds[s], list[i]->work.nanoseconds[s] = 0;
      list[i]->next = model.spaces;
      model.spaces = list[i];
    }
  }
};

struct Batch {
  lcrbnn_model& model;
  const float* images;
  const uint8_t* pixels;
  float* outputs;
  Lease& lease;

  // Runs image i in the space of a worker, with its rows split over `threads` workers.
  void run_one(size_t i, int worker, int threads) const {
    const size_t numbers = model.graph.values[0].numbers();
    Space& space = *lease.list[worker];
    const float* image = images + i * numbers;
    if (pixels) {
      const uint8_t* from = pixels + i * numbers;
      const size_t channels = model.graph.mean.size();
      for (size_t p = 0; p < numbers; p += channels)
        for (size_t c = 0; c < channels; ++c) space.image[p + c] = model.levels[c * 256 + from[p + c]];
      image = space.image;
    }
    Workspace workers[kMostThreads];
    for (int t = 0; t < threads; ++t) workers[t] = lease.list[threads == 1 ? worker : t]->work;
    run_image(model.graph, model.data, model.plan, *model.rows, image, workers, threads, nullptr);
    float* to = outputs + i * size_t(model.output_numbers);
    for (const Output& output : model.graph.outputs) {
      const size_t count = model.graph.values[size_t(output.value)].numbers();
      memcpy(to, value_of(model.plan, workers[0], image, output.value), count * 4);
      to += count;
    }
  }
};

int run_any(lcrbnn_model* model, const float* images, const uint8_t* pixels, size_t n, float* outputs, int threads,
            char* message, size_t size) {
  Error error;
  if (!model || (n && ((!images && !pixels) || !outputs)))
    error.call("run needs a model, images and memory for the outputs");
  else if (threads < 1 || threads > kMostThreads)
    error.call("threads must be from 1 to %d; got %d", kMostThreads, threads);
  if (error.code || n == 0) return report(error, message, size);
  Lease lease{*model};
  if (!lease.take(threads)) {
    error.memory("there is not enough memory to run");
    return report(error, message, size);
  }
  threads = lease.count;
  Batch batch{*model, images, pixels, outputs, lease};
  // Each thread runs whole images while there are enough images. The threads share the rows of the others.
  const size_t whole = threads > 1 ? n / size_t(threads) * size_t(threads) : n;
  if (threads == 1) {
    for (size_t i = 0; i < n; ++i) batch.run_one(i, 0, 1);
  } else {
    const size_t most = kMostTasks;
    for (size_t start = 0; start < whole; start += most) {
      struct Part {
        const Batch* batch;
        size_t start;
      } part{&batch, start};
      const size_t count = whole - start < most ? whole - start : most;
      parallel(
          threads, int(count),
          [](void* context, int task, int worker) {
            const Part& p = *static_cast<const Part*>(context);
            p.batch->run_one(p.start + size_t(task), worker, 1);
          },
          &part);
    }
    for (size_t i = whole; i < n; ++i) batch.run_one(i, 0, threads);
  }
  lease.give(n);
  return LCRBNN_OK;
}

// Runs a plan that keeps all values; slow, with one thread.
bool inspect(lcrbnn_model* model, const float* images, size_t n, int node, float* values, int32_t* sums, Error& error) {
  if (!model) return error.call("there is no model");
  lcrbnn_model& m = *model;
  if (node < 0 || node >= int(m.graph.nodes.size()))
    return error.call("node must be from 0 to %zu; got %d", m.graph.nodes.size() - 1, node);
  if (sums && m.graph.nodes[size_t(node)].op != Op::bconv) return error.call("node %d is not a bconv", node);
  if (n && (!images || !(values || sums))) return error.call("images and memory for the result are needed");
  {
    const Lock lock(m.mutex);
    if (!m.debug) {
      std::unique_ptr<Plan> created(new Plan);
      if (!make_plan(m.graph, m.data, m.fuse, true, *created, error)) return false;
      m.debug = std::move(created);
    }
  }
  Space* space = new_space(*m.debug, 0);
  if (!space) return error.memory("there is not enough memory to run");
  const size_t numbers = m.graph.values[0].numbers(), created = m.graph.values[size_t(node) + 1].numbers();
  for (size_t i = 0; i < n; ++i) {
    const float* image = images + i * numbers;
    Probe probe;
    if (sums) probe.node = node, probe.sums = sums + i * created;
    run_image(m.graph, m.data, *m.debug, *m.rows, image, &space->work, 1, &probe);
    if (values) memcpy(values + i * created, value_of(*m.debug, space->work, image, node + 1), created * 4);
  }
  free_space(space);
  return true;
}

}  // namespace

extern "C" {

int lcrbnn_abi(void) noexcept { return 3; }

int lcrbnn_open(const char* path, int flags, const char* kernel, lcrbnn_model** out, char* message,
                size_t size) noexcept {
  return open_any(path, nullptr, 0, flags, kernel, out, message, size);
}

int lcrbnn_open_memory(const void* data, size_t bytes, int flags, const char* kernel, lcrbnn_model** out, char* message,
                       size_t size) noexcept {
  return open_any(nullptr, data, bytes, flags, kernel, out, message, size);
}

void lcrbnn_close(lcrbnn_model* model) noexcept { delete model; }

void lcrbnn_get_info(const lcrbnn_model* model, lcrbnn_info* info) noexcept {
  const Shape& in = model->graph.values[0];
  *info = {in.h,
           in.w,
           in.c,
           int32_t(model->graph.classes.size()),
           int32_t(model->graph.nodes.size()),
           int32_t(model->plan.stages.size()),
          int32_t(model->graph.outputs.size()),
          model->output_numbers,
           model->file_bytes,
           model->memory.total(),
           model->plan.arena + model->plan.tile};
}

static bool has_node(const lcrbnn_model* m, int node) { return node >= 0 && size_t(node) < m->graph.nodes.size(); }

const char* lcrbnn_model_name(const lcrbnn_model* m) noexcept { return m->graph.name.c_str(); }
const char* lcrbnn_class_name(const lcrbnn_model* m, int i) noexcept {
  return i >= 0 && size_t(i) < m->graph.classes.size() ? m->graph.classes[size_t(i)].c_str() : nullptr;
}
const char* lcrbnn_node_name(const lcrbnn_model* m, int node) noexcept {
  return has_node(m, node) ? m->graph.nodes[size_t(node)].name.c_str() : nullptr;
}
const char* lcrbnn_node_op(const lcrbnn_model* m, int node) noexcept {
  return has_node(m, node) ? op_name(m->graph.nodes[size_t(node)].op) : nullptr;
}
const char* lcrbnn_node_kernel(const lcrbnn_model* m, int node) noexcept {
  return has_node(m, node) ? m->kernels[size_t(node)].c_str() : nullptr;
}
int lcrbnn_node_shape(const lcrbnn_model* m, int node, int32_t shape[3]) noexcept {
  if (!has_node(m, node)) return 0;
  const Shape& s = m->graph.values[size_t(node) + 1];
  shape[0] = s.h, shape[1] = s.w, shape[2] = s.c;
  return 1;
}

static bool has_output(const lcrbnn_model* m, int i) { return i >= 0 && size_t(i) < m->graph.outputs.size(); }

const char* lcrbnn_output_name(const lcrbnn_model* m, int i) noexcept {
  return has_output(m, i) ? m->graph.outputs[size_t(i)].name.c_str() : nullptr;
}
int lcrbnn_output_shape(const lcrbnn_model* m, int i, int32_t shape[3]) noexcept {
  return has_output(m, i) ? lcrbnn_node_shape(m, m->graph.outputs[size_t(i)].value - 1, shape) : 0;
}

int lcrbnn_run(lcrbnn_model* model, const float* images, size_t n, float* outputs, int threads, char* message,
               size_t size) noexcept {
  return run_any(model, images, nullptr, n, outputs, threads, message, size);
}

int lcrbnn_run_pixels(lcrbnn_model* model, const uint8_t* pixels, size_t n, float* outputs, int threads, char* message,
                      size_t size) noexcept {
  return run_any(model, nullptr, pixels, n, outputs, threads, message, size);
}

uint64_t lcrbnn_times(lcrbnn_model* m, double* seconds, int reset) noexcept {
  const Lock lock(m->mutex);
  const uint64_t images = m->images;
  for (size_t i = 0; seconds && i < m->graph.nodes.size(); ++i) seconds[i] = 0;
  for (size_t s = 0; s < m->plan.stages.size(); ++s) {
    if (seconds && images) seconds[m->plan.stages[s].node] += double(m->nanoseconds[s]) * 1e-9 / double(images);
    if (reset) m->nanoseconds[s] = 0;
  }
  if (reset) m->images = 0;
  return images;
}

int lcrbnn_value(lcrbnn_model* model, const float* images, size_t n, int node, float* out, char* message,
                 size_t size) noexcept {
  Error error;
  GUARDED(inspect(model, images, n, node, out, nullptr, error);)
  return report(error, message, size);
}

int lcrbnn_accumulators(lcrbnn_model* model, const float* images, size_t n, int node, int32_t* out, char* message,
                        size_t size) noexcept {
  Error error;
  GUARDED(inspect(model, images, n, node, nullptr, out, error);)
  return report(error, message, size);
}

}  // extern "C"
