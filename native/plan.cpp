#include "plan.h"

#include <algorithm>

#include "ops.h"

namespace lcrbnn {
namespace {

bool is_elementwise(Op op) {
  switch (op) {
    case Op::affine:
    case Op::add:
    case Op::hardtanh:
    case Op::relu:
    case Op::prelu:
    case Op::shift:
    case Op::multiply:
    case Op::clamp:
    case Op::sigmoid:
    case Op::tanh:
    case Op::gelu:
    case Op::gelu_tanh:
    case Op::silu:
    case Op::hardsigmoid:
    case Op::hardswish:
    case Op::elu: return true;
    default: return false;
  }
}

// What each operator is as the head of a stage, and as a step.
const struct {
  Op op;
  Head head;
  StepKind step;
} kKinds[] = {{Op::conv, Head::conv, {}},
              {Op::bconv, Head::bconv, {}},
              {Op::wconv, Head::conv, {}},
              {Op::affine, Head::load, StepKind::affine},
              {Op::add, Head::load, StepKind::add},
              {Op::hardtanh, Head::load, StepKind::hardtanh},
              {Op::relu, Head::load, StepKind::relu},
              {Op::prelu, Head::load, StepKind::prelu},
              {Op::shift, Head::load, StepKind::shift},
              {Op::maxpool, Head::maxpool, {}},
              {Op::avgpool, Head::avgpool, {}},
              {Op::mean, Head::mean, {}},
              {Op::subsample, Head::subsample, {}},
              {Op::channels, Head::channels, {}},
              {Op::flatten, Head::load, {}},
              {Op::softmax, Head::softmax, {}},
              {Op::multiply, Head::load, StepKind::multiply},
              {Op::matmul, Head::matmul, {}},
              {Op::constant, Head::load, {}},
              {Op::clamp, Head::load, StepKind::activation},
              {Op::sigmoid, Head::load, StepKind::activation},
              {Op::tanh, Head::load, StepKind::activation},
              {Op::gelu, Head::load, StepKind::activation},
              {Op::gelu_tanh, Head::load, StepKind::activation},
              {Op::silu, Head::load, StepKind::activation},
              {Op::hardsigmoid, Head::load, StepKind::activation},
              {Op::hardswish, Head::load, StepKind::activation},
              {Op::elu, Head::load, StepKind::activation},
              {Op::take, Head::take, {}},
              {Op::strided, Head::strided, {}},
              {Op::normalize, Head::normalize, {}},
              {Op::bilinear, Head::bilinear, {}},
              {Op::adaptive_avgpool, Head::adaptive_avgpool, {}}};

Activation activation_of(const Node& node) {
  switch (node.op) {
    case Op::clamp: return {Function::clamp, node.low, node.high};
    case Op::sigmoid: return {Function::sigmoid, 0, 0};
    case Op::tanh: return {Function::tanh, 0, 0};
    case Op::gelu: return {Function::gelu, 0, 0};
    case Op::gelu_tanh: return {Function::gelu_tanh, 0, 0};
    case Op::silu: return {Function::silu, 0, 0};
    case Op::hardsigmoid: return {Function::hardsigmoid, 0, 0};
    case Op::hardswish: return {Function::hardswish, 0, 0};
    default: return {Function::elu, node.alpha, 0};
  }
}

struct Planner {
  const Graph& graph;
  const std::vector<NodeData>& data;
  const bool fuse, keep;
  Plan& plan;
  Error& error;

  // Planning data of a stage: its values in order, and the bits that later nodes need.
  struct Draft {
    std::vector<int> values{};                 // values[0] is that of the head; for load, that of its first node
    std::vector<std::pair<int, Step>> bits{};  // (value, step)
    int reads = -1;                            // load: the value that it reads
  };
  std::vector<Draft> drafts{};
  uint64_t budget = uint64_t(1) << 30;  // work for integer limits, about a second

  std::vector<int> maker{};    // stage of each value; -1 for the input and constants; a view has that of its input
  std::vector<bool> stored{};  // whether a value must be written to a buffer
  std::vector<int> root{};     // for views: the value that has the memory

  std::vector<int> last{};     // the last stage that reads a value
  std::vector<int> readers{};  // number of node inputs that read a value

  void store(int value, int stage) {
    const size_t v = size_t(root[size_t(value)]);
    stored[v] = true;
    last[v] = std::max(last[v], stage);
  }

  // Returns the stage of a convolution that can compute the rows of max pool `index` one by one, or -1. This requires
  // that nothing else reads its values.
  int find_feeder(int index) const {
    const Node& node = graph.nodes[size_t(index)];
    const int stage = int(plan.stages.size()) - 1, value = node.in[0];
    if (!fuse || keep || node.op != Op::maxpool || stage < 0) return -1;
    if (plan.stages[size_t(stage)].head != Head::conv || drafts[size_t(stage)].values.back() != value) return -1;
    for (const int made : drafts[size_t(stage)].values)
      if (readers[size_t(made)] != 1) return -1;
    // Two workers both compute the rows that both need. These must be few, and there must be enough rows for all
    // workers.
    return node.window.kh <= 2 * node.window.sy && node.out.h >= 4 ? stage : -1;
  }

  int open_stage(Head head, int node, int input) {
    Stage made{head, node};
    made.in = graph.values[size_t(input)];
    made.feeder = find_feeder(node);
    if (made.feeder >= 0) plan.stages[size_t(made.feeder)].feeds = true;
    made.out = head == Head::load || head == Head::image_mean ? made.in : graph.nodes[size_t(node)].out;
    plan.stages.push_back(std::move(made));
    drafts.emplace_back();
    drafts.back().reads = input;
    const int stage = int(plan.stages.size()) - 1;
    if (head != Head::bconv && plan.stages.back().feeder < 0) store(input, stage);  // bconv reads bits, not the value
    return stage;
  }

  Step step_of(int index, StepKind kind) const {
    const NodeData& d = data[size_t(index)];
    Step step{kind};
    step.node = index;
    step.a = kind == StepKind::prelu ? d.slope : d.a;
    step.b = d.b;
    if (kind == StepKind::activation) step.activation = activation_of(graph.nodes[size_t(index)]);
    return step;
  }

  // Adds the step that computes the input bits of convolution `index`: to the stage of the value, or to a new stage.
  void add_bits(int index) {
    const Node& node = graph.nodes[size_t(index)];
    const BConv& c = data[size_t(index)].bconv;
    Step step{StepKind::bits};
    step.node = index;
    step.a = data[size_t(index)].threshold;
    step.group_in = c.group_in();
    step.group_words = c.words();
    step.words = size_t(c.groups) * size_t(c.words());
    step.prepare = {index};
    const int value = node.in[0];
    int stage = fuse && !node.mean_threshold && root[size_t(value)] == value ? maker[size_t(value)] : -1;
    if (stage >= 0) {
      for (auto& [of, other] : drafts[size_t(stage)].bits)
        if (of == value && other.a == step.a && other.group_in == step.group_in) {
          other.prepare.push_back(index);
          return;
        }
    } else {
      stage = open_stage(node.mean_threshold ? Head::image_mean : Head::load, index, value);
    }
    drafts[size_t(stage)].bits.emplace_back(value, std::move(step));
  }

  bool same_shapes(const Node& node) const { return graph.values[size_t(node.in[0])] == graph.values[size_t(node.in[1])]; }

  Head head_of(const Node& node) const {
    return node.is_sum_or_product() && !same_shapes(node) ? Head::broadcast : kKinds[int(node.op)].head;
  }

  // Returns the stage to which node `index` can be added as a step, or -1. The node must read the last value of this
  // stage, and its other input must be computed earlier.
  int find_fusable_stage(int index) const {
    const Node& node = graph.nodes[size_t(index)];
    if (!fuse || !is_elementwise(node.op)) return -1;
    int value = node.in[0], other = -1;
    if (node.is_sum_or_product()) {
      if (!same_shapes(node)) return -1;
      other = node.in[1];
      if (maker[size_t(other)] > maker[size_t(value)]) std::swap(value, other);
      if (maker[size_t(other)] >= maker[size_t(value)]) return -1;
    }
    const int stage = maker[size_t(value)];
    return stage >= 0 && !drafts[size_t(stage)].values.empty() && drafts[size_t(stage)].values.back() == value ? stage
                                                                                                               : -1;
  }

  void assign_stages() {
    const size_t values = graph.values.size();
    maker.assign(values, -1);
    stored.assign(values, keep);
    last.assign(values, -1);
    readers.assign(values, 0);
    for (const Node& node : graph.nodes)
      for (int i = 0; i < node.inputs; ++i) ++readers[size_t(node.in[i])];
    for (const Output& output : graph.outputs) ++readers[size_t(output.value)];
    root.resize(values);
    for (size_t v = 0; v < values; ++v) root[v] = int(v);
    plan.stage_of.assign(graph.nodes.size(), -1);
    for (int i = 0; i < int(graph.nodes.size()); ++i) {
      const Node& node = graph.nodes[size_t(i)];
      const size_t made = size_t(i) + 1;
      if (node.op == Op::constant) continue;
      if (is_view(graph, node)) {
        root[made] = root[size_t(node.in[0])];
        maker[made] = maker[size_t(node.in[0])];
        store(node.in[0], -1);
        continue;
      }
      int stage = find_fusable_stage(i);
      if (stage < 0) {
        if (node.op == Op::bconv) add_bits(i);
        stage = open_stage(head_of(node), i, node.in[0]);
      }
      const Head head = plan.stages[size_t(stage)].head;
      if (head == Head::broadcast || head == Head::matmul) {
        if (plan.stages[size_t(stage)].node == i) store(node.in[1], stage);
      }
      if (node.is_sum_or_product() && same_shapes(node)) {  // the input that is not the previous value of the stage
        const Draft& d = drafts[size_t(stage)];
        const int chain = d.values.empty() ? d.reads : d.values.back();
        store(node.in[0] == chain ? node.in[1] : node.in[0], stage);
      }
      drafts[size_t(stage)].values.push_back(int(made));
      maker[made] = stage;
      plan.stage_of[size_t(i)] = stage;
    }
    for (const Output& output : graph.outputs) store(output.value, int(plan.stages.size()));
  }

  int buffer(uint64_t bytes, int born, int read_last) {
    plan.buffers.push_back({bytes, born, read_last});
    return int(plan.buffers.size()) - 1;
  }

  void extend_use(int buffer, int stage) {
    plan.buffers[size_t(buffer)].last = std::max(plan.buffers[size_t(buffer)].last, stage);
  }

  int buffer_of(int value) const { return plan.value[size_t(root[size_t(value)])]; }

  void assemble() {
    const int end = int(plan.stages.size());
    plan.value.assign(graph.values.size(), -1);
    plan.scratch.assign(graph.nodes.size(), -1);
    plan.buffers.push_back({0, 0, end});
    plan.value[0] = 0;
    for (size_t i = 0; i < graph.nodes.size(); ++i)
      if (graph.nodes[i].op == Op::constant) {
        plan.value[i + 1] = buffer(0, 0, end);
        plan.buffers.back().constant = data[i].value;
      }
    for (int s = 0; s < end; ++s)
      for (const int v : drafts[size_t(s)].values)
        if (stored[size_t(v)]) plan.value[size_t(v)] = buffer(graph.values[size_t(v)].numbers() * 4, s, keep ? end : s);
    for (int s = 0; s < end; ++s) add_steps(s);
    for (const Output& output : graph.outputs) extend_use(buffer_of(output.value), end);
    for (size_t v = 0; v < graph.values.size(); ++v) plan.value[v] = plan.value[size_t(root[v])];
  }

  int other_input(int index, int chain) const {
    const Node& node = graph.nodes[size_t(index)];
    return node.in[0] == chain ? node.in[1] : node.in[0];
  }

  // Lets a sum or product overwrite an input that is not read later, which halves the memory traffic.
  void reuse_input_buffer(int s, std::vector<int>& to) {
    const Draft& d = drafts[size_t(s)];
    int found = -1;
    for (size_t k = 1; k < to.size(); ++k) {
      if (!graph.nodes[size_t(d.values[k] - 1)].is_sum_or_product()) continue;
      if (found >= 0) return;  // stages with two sums are rare
      found = int(k);
    }
    if (found < 0 || to[size_t(found)] == kTile) return;
    const int other = root[size_t(other_input(d.values[size_t(found)] - 1, d.values[size_t(found) - 1]))];
    const int old = plan.value[size_t(other)], now = to[size_t(found)];
    if (old == 0 || plan.buffers[size_t(old)].constant || last[size_t(other)] != s) return;
    for (size_t k = 0; k < to.size(); ++k) {
      if (to[k] != now) continue;
      to[k] = k < size_t(found) ? kTile : old;
      if (k >= size_t(found) && plan.value[size_t(d.values[k])] == now) plan.value[size_t(d.values[k])] = old;
    }
    plan.buffers[size_t(now)].bytes = 0;
  }

  // Returns whether the steps can be done in registers: bits fill whole bytes, and nothing depends on the pixel.
  bool fits_registers(const Stage& stage) const {
    const NodeData& d = data[size_t(stage.node)];
    bool fits = !d.spatial && d.bconv.group_out() % 8 == 0 && 2 * stage.steps.size() + 1 <= size_t(kMostMicros);
    fits = fits && !d.kernel->wide_row;
    for (const Step& step : stage.steps)
      if (step.kind == StepKind::multiply || step.kind == StepKind::activation) fits = false;
      else if (step.kind == StepKind::bits) fits = fits && (step.group_in % 64 == 0 || step.group_in == stage.out.c);
    return fits;
  }

  void add_steps(int s) {
    Stage& stage = plan.stages[size_t(s)];
    Draft& d = drafts[size_t(s)];
    // Each value is written to the buffer of the next stored value of the chain, or to a tile if there is none.
    std::vector<int> to(d.values.size(), kTile);
    for (size_t k = d.values.size(); k-- > 0;)
      to[k] = stored[size_t(d.values[k])] ? plan.value[size_t(d.values[k])] : k + 1 < to.size() ? to[k + 1] : kTile;
    if (stage.head == Head::bconv && !keep) reuse_input_buffer(s, to);
    const bool tiled = stage.head == Head::bconv || stage.head == Head::load || stage.feeds;
    const int when = stage.feeds ? s + 1 : s;
    if (!tiled) {
      const int spare =
          std::find(to.begin(), to.end(), kTile) == to.end() ? kTile : buffer(stage.out.numbers() * 4, s, s);
      for (int& t : to)
        if (t == kTile) t = spare;
    }
    if (stage.head != Head::bconv && stage.feeder < 0) {
      stage.from = buffer_of(d.reads);
      extend_use(stage.from, when);
    }
    const Node& first = graph.nodes[size_t(stage.node)];
    if (stage.head == Head::broadcast || stage.head == Head::matmul) {
      stage.other = buffer_of(first.in[1]);
      extend_use(stage.other, s);
    }
    if (stage.head == Head::image_mean) stage.sums = buffer(uint64_t(stage.in.h) * sizeof(double), s, s);
    if (stage.head == Head::normalize && first.spatial_groups)  // sums, then sums of squares, of each group and row
      stage.sums = buffer(2 * uint64_t(stage.in.h) * uint64_t(first.window.groups) * sizeof(double), s, s);
    const auto sinks = [&](int value) {
      for (auto& [of, step] : d.bits) {
        if (of != value) continue;
        step.to = buffer(uint64_t(stage.out.h) * uint64_t(stage.out.w) * step.words * 8, s, s);
        for (const int reader : step.prepare) plan.scratch[size_t(reader)] = buffer(data[size_t(reader)].scratch, s, s);
        stage.steps.push_back(std::move(step));
      }
    };
    size_t k = 0;
    if (stage.head == Head::load || stage.head == Head::image_mean) {
      sinks(d.reads);
    } else {
      stage.to = to[0];
      if (graph.nodes[size_t(stage.node)].op == Op::wconv) {
        if (data[size_t(stage.node)].spatial)
          stage.steps.push_back(step_of(stage.node, StepKind::spatial)), stage.steps.back().to = to[0];
        stage.steps.push_back(step_of(stage.node, StepKind::affine));
        stage.steps.back().to = to[0];
      }
      if (stage.head == Head::bconv) extend_use(plan.scratch[size_t(stage.node)], s);
      sinks(d.values[0]);
      k = 1;
    }
    for (; k < d.values.size(); ++k) {
      const int index = d.values[k] - 1;
      const Node& node = graph.nodes[size_t(index)];
      Step step = step_of(index, kKinds[int(node.op)].step);
      step.to = to[k];
      if (node.is_sum_or_product()) {
        const int chain = k ? d.values[k - 1] : d.reads;
        step.other = buffer_of(node.in[0] == chain ? node.in[1] : node.in[0]);
        extend_use(step.other, when);
      }
      stage.steps.push_back(std::move(step));
      sinks(d.values[k]);
    }
    if (fuse && !keep && stage.head == Head::bconv) integer_limits(graph, data, stage, budget);
    stage.micro = stage.head == Head::bconv && !stage.limits && fits_registers(stage);
  }
};

}  // namespace

bool make_plan(const Graph& graph, const std::vector<NodeData>& data, bool fuse, bool keep, Plan& plan, Error& error) {
  plan = Plan{};
  Planner planner{graph, data, fuse, keep, plan, error};
  planner.assign_stages();
  planner.assemble();
  if (!place_buffers(plan, error)) return false;
  size_tiles(graph, data, plan);
  return plan.tile <= kMemoryLimit || error.memory("the model needs too much memory to run");
}

}  // namespace lcrbnn
