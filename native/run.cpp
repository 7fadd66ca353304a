#include "run.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "ops.h"
#include "threads.h"

namespace lcrbnn {
namespace {

// One stage of one image, shared by its workers.
struct Job {
  const Graph& graph;
  const std::vector<NodeData>& data;
  const Plan& plan;
  const RowOps& ops;
  const float* image;
  Workspace* workers;
  const Probe* probe;
  const Stage* stage = nullptr;
  int phase = 0, tasks = 1, rows = 1;

  char* at(int buffer) const { return workers[0].arena + plan.buffers[size_t(buffer)].offset; }
  const float* floats(int buffer) const {
    const float* constant = plan.buffers[size_t(buffer)].constant;
    return buffer == 0 ? image : constant ? constant : reinterpret_cast<const float*>(at(buffer));
  }

  void run_rows(int begin, int end, int worker) const;
  void run_binary_conv(int begin, int end, int worker) const;
  template <class Count>
  void store_sums(int y, int first, int n, const Count* counts) const;
  Normalization normalization(int worker) const;
  void run_head_row(int y, int worker) const;
  float* ring(int worker) const;
  void run_feeder_row(int y, int worker, bool goes_on) const;
  void run_steps(int y, int first, int n, const float* now, size_t stride, float* tile, size_t tile_stride,
             const uint16_t* counts) const;
  void write_bits(const Step&, int y, int first, int n, const float* now, size_t stride, const uint16_t* counts) const;
  BitsRow bits_row(const Step&, int y, int first) const;
  int list_micros(int y, int first, Micro* list) const;
};

const int32_t* correction_of(const NodeData& d, int y) {
  return d.correction ? d.correction + size_t(d.row[size_t(y)]) * size_t(d.columns) * size_t(d.bconv.out_c) : nullptr;
}

BitsRow Job::bits_row(const Step& step, int y, int first) const {
  BitsRow row{};
  row.to = reinterpret_cast<uint64_t*>(at(step.to)) + size_t(y) * size_t(stage->out.w) * step.words;
  row.words = step.words;
  row.group_in = step.group_in;
  row.group_words = step.group_words;
  row.first = first;
  row.channels = stage->out.c;
  // Kernels write whole bytes and OR single bits. The first panel clears the row if some bytes are not written whole.
  const BConv& made = data[size_t(stage->node)].bconv;
  const bool odd = stage->head == Head::bconv && made.groups > 1 && made.group_out() % 8;
  if (first == 0 && (odd || step.group_in % 64 || stage->out.c % 64))
    memset(row.to, 0, size_t(stage->out.w) * step.words * 8);
  return row;
}

void Job::write_bits(const Step& step, int y, int first, int n, const float* now, size_t stride,
               const uint16_t* counts) const {
  const BitsRow to = bits_row(step, y, first);
  if (stage->limits) {
    const NodeData& d = data[size_t(stage->node)];
    const size_t out = size_t(d.bconv.out_c);
    LimitsRow row{};
    row.counts = counts;
    row.panel = d.kernel->panel, row.pixels = stage->out.w, row.n = n;
    row.limit =
        step.limit.data() + (d.correction ? size_t(d.row[size_t(y)]) * size_t(d.columns) * out : 0) + size_t(first);
    row.column = d.correction ? d.column.data() : nullptr;
    row.limit_stride = out;
    row.flip = step.flip.data();
    ops.limits(row, to);
    return;
  }
  const Row row{now, stride, nullptr, 0, stage->out.w, n};
  if (step.a) {
    ops.bits(row, step.a + first, false, to);
    return;
  }
  const double* parts = reinterpret_cast<const double*>(at(stage->sums));
  double sum = 0;
  for (int i = 0; i < stage->in.h; ++i) sum += parts[i];
  const float mean = float(sum / double(stage->in.numbers()));
  ops.bits(row, &mean, true, to);
}

// Runs the steps on channels [first, first + n) of row y, which are in `now`.
void Job::run_steps(int y, int first, int n, const float* now, size_t stride, float* tile, size_t tile_stride,
                const uint16_t* counts) const {
  const size_t width = size_t(stage->out.w), all = size_t(stage->out.c),
               offset = size_t(y) * width * all + size_t(first);
  for (const Step& step : stage->steps) {
    if (step.kind == StepKind::bits) {
      write_bits(step, y, first, n, now, stride, counts);
      continue;
    }
    Row row{now,
            stride,
            step.to == kTile ? tile : reinterpret_cast<float*>(at(step.to)) + offset,
            step.to == kTile ? tile_stride : all,
            int(width),
            n};
    switch (step.kind) {
      case StepKind::spatial: {
        const NodeData& d = data[size_t(step.node)];
        for (size_t x = 0; x < width; ++x)
          for (int c = 0; c < n; ++c) {
            const float s = d.spatial_one ? d.spatial[size_t(y) * width + x] : d.spatial[offset + x * all + size_t(c)];
            row.to[x * row.to_stride + size_t(c)] = s * now[x * stride + size_t(c)];
          }
        break;
      }
      case StepKind::affine: ops.affine(row, step.a + first, step.b + first); break;
      case StepKind::add: ops.add(row, floats(step.other) + offset, all); break;
      case StepKind::multiply: ops.multiply(row, floats(step.other) + offset, all); break;
      case StepKind::activation: ops.activation(row, step.activation); break;
      case StepKind::hardtanh: ops.hardtanh(row); break;
      case StepKind::relu: ops.relu(row); break;
      case StepKind::prelu: ops.prelu(row, step.a + first); break;
      case StepKind::shift: ops.shift(row, step.b + first); break;
      case StepKind::bits: break;
    }
    now = row.to;
    stride = row.to_stride;
  }
}

// Lists the steps of a stage on row y as register operations; a value is stored when the next step has another buffer.
int Job::list_micros(int y, int first, Micro* list) const {
  const size_t all = size_t(stage->out.c), offset = size_t(y) * size_t(stage->out.w) * all + size_t(first);
  int count = 0, to = stage->to;
  const auto store = [&] {
    if (to != kTile)
      list[count++] = {MicroKind::store, nullptr, nullptr, reinterpret_cast<float*>(at(to)) + offset, nullptr, all};
  };
  for (const Step& step : stage->steps) {
    const float *a = step.a ? step.a + first : nullptr, *b = step.b ? step.b + first : nullptr;
    if (step.kind == StepKind::bits) {
      const BitsRow row = bits_row(step, y, first);
      list[count++] = {MicroKind::bits, a, nullptr, nullptr, reinterpret_cast<uint8_t*>(row.to) + first / 8,
                       row.words * 8};
      continue;
    }
    if (step.to != to) store();
    to = step.to;
    switch (step.kind) {
      case StepKind::affine: list[count++] = {MicroKind::affine, a, b, nullptr, nullptr, 0}; break;
      case StepKind::add:
        list[count++] = {MicroKind::add, floats(step.other) + offset, nullptr, nullptr, nullptr, all};
        break;
      case StepKind::hardtanh: list[count++] = {MicroKind::hardtanh, nullptr, nullptr, nullptr, nullptr, 0}; break;
      case StepKind::relu: list[count++] = {MicroKind::relu, nullptr, nullptr, nullptr, nullptr, 0}; break;
      case StepKind::prelu: list[count++] = {MicroKind::prelu, a, nullptr, nullptr, nullptr, 0}; break;
      case StepKind::shift: list[count++] = {MicroKind::shift, nullptr, b, nullptr, nullptr, 0}; break;
      default: break;
    }
  }
  store();
  return count;
}

template <class Count>
void Job::store_sums(int y, int first, int n, const Count* counts) const {
  const NodeData& d = data[size_t(stage->node)];
  const BConv& c = d.bconv;
  const int32_t* more = correction_of(d, y);
  for (int x = 0; x < c.out_w; ++x)
    for (int i = 0; i < n; ++i) {
      const size_t at = size_t(first + i);
      const int32_t extra = more ? more[size_t(d.column[size_t(x)]) * size_t(c.out_c) + at] : 0;
      probe->sums[(size_t(y) * size_t(c.out_w) + size_t(x)) * size_t(c.out_c) + at] =
          c.taps() - 2 * int32_t(counts[size_t(x) * size_t(d.kernel->panel) + size_t(i)]) + extra;
    }
}

void Job::run_binary_conv(int begin, int end, int worker) const {
  const NodeData& d = data[size_t(stage->node)];
  const BConv& c = d.bconv;
  const BKernel& kernel = *d.kernel;
  float* tile = reinterpret_cast<float*>(workers[worker].tile);
  uint16_t* counts = reinterpret_cast<uint16_t*>(workers[worker].tile + plan.tile_counts);
  uint32_t* wide_counts = reinterpret_cast<uint32_t*>(counts);
  const char* scratch = at(plan.scratch[size_t(stage->node)]);
  const int panels = (c.group_out() + kernel.panel - 1) / kernel.panel;
  const size_t all = size_t(c.out_c), width = size_t(c.out_w);
  for (int p = 0; p < panels * c.groups; ++p) {
    const int inside = p % panels * kernel.panel, first = p / panels * c.group_out() + inside;
    const int n = std::min(kernel.panel, c.group_out() - inside);
    for (int y = begin; y < end; ++y) {
      if (kernel.wide_row) kernel.wide_row(c, d.weight, scratch, y, p, wide_counts);
      else kernel.row(c, d.weight, scratch, y, p, counts);
      if (probe && probe->node == stage->node) {
        if (kernel.wide_row) store_sums(y, first, n, wide_counts);
        else store_sums(y, first, n, counts);
      }
      float* to =
          stage->to == kTile ? tile : reinterpret_cast<float*>(at(stage->to)) + size_t(y) * width * all + size_t(first);
      const size_t stride = stage->to == kTile ? size_t(n) : all;
      if (stage->limits) {
        for (const Step& step : stage->steps)
          if (step.kind == StepKind::bits) write_bits(step, y, first, n, nullptr, 0, counts);
        continue;
      }
      CountsRow row{};
      row.counts = counts;
      row.panel = kernel.panel, row.pixels = c.out_w, row.n = n, row.taps = c.taps();
      row.a = d.a + first, row.b = d.b + first;
      row.correction = correction_of(d, y);
      if (row.correction) row.correction += first, row.column = d.column.data(), row.correction_stride = all;
      row.plain = row.correction && d.row[size_t(y)] == d.plain_row ? d.plain_column : -1;
      if (d.spatial) {
        row.spatial = d.spatial + (d.spatial_one ? size_t(y) * width : size_t(y) * width * all + size_t(first));
        row.spatial_stride = d.spatial_one ? 1 : all;
        row.spatial_one = d.spatial_one;
      }
      if (stage->micro && ops.finish) {
        Micro list[kMostMicros];
        const int count = list_micros(y, first, list);
        ops.finish(row, list, count);
        continue;
      }
      row.to = to, row.to_stride = stride;
      if (kernel.wide_row) wide_counts_row(row, wide_counts);
      else ops.counts(row);
      run_steps(y, first, n, to, stride, tile, size_t(n), counts);
    }
  }
}

void Job::run_head_row(int y, int worker) const {
  const Stage& s = *stage;
  const Node& node = graph.nodes[size_t(s.node)];
  const float* from = s.feeder < 0 ? floats(s.from) : nullptr;
  float* row = reinterpret_cast<float*>(at(s.to)) + size_t(y) * size_t(s.out.w) * size_t(s.out.c);
  double* scratch = reinterpret_cast<double*>(workers[worker].tile + plan.tile_scratch);
  switch (s.head) {
    case Head::maxpool:
      if (s.feeder >= 0) maxpool_row(ops, node.window, s.in, s.out, ring(worker), node.window.kh, row, y);
      else maxpool_row(ops, node.window, s.in, s.out, from, s.in.h, row, y);
      break;
    case Head::avgpool: avgpool_row(ops, node.window, s.in, s.out, from, row, scratch, y); break;
    case Head::mean: mean_map(ops, s.in, from, row, scratch); break;
    case Head::subsample: subsample_row(node.window, s.in, s.out, from, row, y); break;
    case Head::channels: channels_row(node.before, s.in, s.out, from, row, y); break;
    case Head::softmax: softmax_row(s.in, from, row, y); break;
    case Head::broadcast: {
      const Shape& second = graph.values[size_t(node.in[1])];
      broadcast_row(node.op == Op::multiply, s.in, second, s.out, from, floats(s.other), row, y);
      break;
    }
    case Head::matmul:
      matmul_row(ops, s.in, s.out, node.transpose, from, floats(s.other), row, reinterpret_cast<float*>(scratch), y);
      break;
    case Head::take: take_row(data[size_t(s.node)].indices, node.fill, s.in, s.out, from, row, y); break;
    case Head::strided: strided_row(data[size_t(s.node)].factors, node.offset, s.out, from, row, y); break;
    case Head::normalize: normalization(worker).run_row(node.spatial_groups, row, y); break;
    case Head::bilinear: bilinear_row(node.align_corners, s.in, s.out, from, row, y); break;
    case Head::adaptive_avgpool: adaptive_avgpool_row(ops, s.in, s.out, from, row, scratch, y); break;
    default: break;
  }
}

Normalization Job::normalization(int worker) const {
  const Node& node = graph.nodes[size_t(stage->node)];
  const NodeData& d = data[size_t(stage->node)];
  double* parts = node.spatial_groups ? reinterpret_cast<double*>(at(stage->sums)) : nullptr;
  double* scratch = reinterpret_cast<double*>(workers[worker].tile + plan.tile_scratch);
  return {ops, stage->in, node.window.groups, node.eps, d.a, d.b, floats(stage->from), parts, scratch};
}

// Returns a worker's ring of rows for the window of a pool, after the scratch of the convolution that computes them.
float* Job::ring(int worker) const {
  const size_t own = fconv_scratch_floats(data[size_t(plan.stages[size_t(stage->feeder)].node)].fconv);
  return reinterpret_cast<float*>(workers[worker].tile + plan.tile_scratch) + (own + 15) / 16 * 16;
}

// Computes input row y of a pool; `goes_on` if the previous call of the worker computed row y - 1.
void Job::run_feeder_row(int y, int worker, bool goes_on) const {
  Job feeder = *this;
  feeder.stage = &plan.stages[size_t(stage->feeder)];
  const NodeData& d = data[size_t(feeder.stage->node)];
  const size_t all = size_t(stage->in.c), slot = size_t(y % graph.nodes[size_t(stage->node)].window.kh);
  float* row = ring(worker) + slot * size_t(stage->in.w) * all;
  fconv_rows(*d.path, d.fconv, static_cast<const float*>(d.weight), d.bias, floats(feeder.stage->from), row,
             reinterpret_cast<float*>(workers[worker].tile + plan.tile_scratch), y, y + 1, goes_on);
  feeder.run_steps(y, 0, stage->in.c, row, all, row, all, nullptr);
}

// Runs rows [begin, end) of a stage.
void Job::run_rows(int begin, int end, int worker) const {
  const Stage& s = *stage;
  const size_t width = size_t(s.out.w), all = size_t(s.out.c), line = width * all;
  float* tile = reinterpret_cast<float*>(workers[worker].tile);
  if (s.head == Head::image_mean && phase == 0) {
    double* parts = reinterpret_cast<double*>(at(s.sums));
    for (int y = begin; y < end; ++y) parts[y] = sum_row(floats(s.from) + size_t(y) * line, line);
    return;
  }
  if (s.head == Head::normalize && s.sums >= 0) {  // each task needs the sums of all rows
    const Normalization normalized = normalization(worker);
    if (phase > 0) normalized.prepare(phase);
    for (int y = begin; phase < 2 && y < end; ++y) normalized.add_row(phase, y);
    if (phase < 2) return;
  }
  if (s.head == Head::bconv) {
    run_binary_conv(begin, end, worker);
  } else if (s.head == Head::conv) {
    const NodeData& d = data[size_t(s.node)];
    float* to = reinterpret_cast<float*>(at(s.to));
    const int some = std::max<int>(1, int(65536 / (line * 4)));  // rows that stay in the cache for their steps
    for (int y = begin; y < end; y += some) {
      const int last = std::min(end, y + some);
      fconv_rows(*d.path, d.fconv, static_cast<const float*>(d.weight), d.bias, floats(s.from), to + size_t(y) * line,
                 reinterpret_cast<float*>(workers[worker].tile + plan.tile_scratch), y, last, y > begin);
      for (int r = y; r < last; ++r) run_steps(r, 0, s.out.c, to + size_t(r) * line, all, tile, all, nullptr);
    }
  } else {
    const bool load = s.head == Head::load || s.head == Head::image_mean;
    const float* map = load ? floats(s.from) : reinterpret_cast<const float*>(at(s.to));
    int fed = -2;  // the last row that the feeder has computed
    for (int y = begin; y < end; ++y) {
      if (s.feeder >= 0) {
        const Window& w = graph.nodes[size_t(s.node)].window;
        const Range rows = seen(y, s.in.h, w.kh, w.sy, w.top);
        for (int r = std::max(fed + 1, rows.begin); r < rows.end; fed = r++) run_feeder_row(r, worker, r == fed + 1);
      }
      if (!load) run_head_row(y, worker);
      run_steps(y, 0, s.out.c, map + size_t(y) * line, all, tile, all, nullptr);
    }
  }
  for (const Step& step : s.steps)
    for (const int reader : step.prepare) {
      const NodeData& d = data[size_t(reader)];
      d.kernel->prepare(d.bconv, reinterpret_cast<const uint64_t*>(at(step.to)), at(plan.scratch[size_t(reader)]),
                        begin, end);
    }
}

void run_task(void* context, int task, int worker) {
  const Job& job = *static_cast<const Job*>(context);
  const auto edge = [&job](int i) { return int(int64_t(job.rows) * i / job.tasks); };
  job.run_rows(edge(task), edge(task + 1), worker);
}

}  // namespace

void run_image(const Graph& graph, const std::vector<NodeData>& data, const Plan& plan, const RowOps& ops,
               const float* image, Workspace* workers, int threads, const Probe* probe) {
  using clock = std::chrono::steady_clock;
  Job job{graph, data, plan, ops, image, workers, probe};
  clock::time_point before = clock::now();
  for (size_t i = 0; i < plan.stages.size(); ++i) {
    const Stage& stage = plan.stages[i];
    if (stage.feeds) continue;
    job.stage = &stage;
    job.rows = stage.out.h;
    // Few large tasks, because each task reads the weights once. With many rows, more tasks balance the load better.
    job.tasks = threads <= 1 ? 1 : std::min(job.rows, job.rows >= 8 * threads ? 2 * threads : threads);
    const int phases = stage.head == Head::image_mean ? 2 : stage.head == Head::normalize && stage.sums >= 0 ? 3 : 1;
    for (job.phase = 0; job.phase < phases; ++job.phase) parallel(threads, job.tasks, run_task, &job);
    const clock::time_point after = clock::now();
    workers[0].nanoseconds[stage.feeder < 0 ? i : size_t(stage.feeder)] +=
        uint64_t(std::chrono::duration_cast<std::chrono::nanoseconds>(after - before).count());
    before = after;
  }
}

}  // namespace lcrbnn
