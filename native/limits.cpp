// If only signs depend on the sums of a convolution, comparing the counts with integer limits gives the same bits. The
// float32 formula is evaluated at every possible sum; its sign must change at most once.
#include <algorithm>

#include "plan.h"

namespace lcrbnn {
namespace {

// Computes the values of channel o after the steps before `end`, for all sums low, low + by, ...
void evaluate(const NodeData& data, const Stage& stage, size_t end, int o, int low, int by, std::vector<float>& x) {
  const float a = data.a[o], b = data.b[o];
  for (size_t i = 0; i < x.size(); ++i) x[i] = a * float(low + by * int(i)) + b;
  for (size_t s = 0; s < end; ++s) {
    const Step& step = stage.steps[s];
    const float p = step.a ? step.a[o] : 0, q = step.b ? step.b[o] : 0;
    switch (step.kind) {
      case StepKind::affine:
        for (float& v : x) v = p * v + q;
        break;
      case StepKind::hardtanh:
        for (float& v : x) v = v < -1.0f ? -1.0f : v > 1.0f ? 1.0f : v;
        break;
      case StepKind::relu:
        for (float& v : x) v = v < 0.0f ? 0.0f : v;
        break;
      case StepKind::prelu:
        for (float& v : x) v = v >= 0.0f ? v : p * v;
        break;
      case StepKind::shift:
        for (float& v : x) v = v + q;
        break;
      default: break;
    }
  }
}

bool limits_of(const NodeData& data, Stage& stage, size_t index, uint64_t& budget) {
  const BConv& c = data.bconv;
  Step& step = stage.steps[index];
  const int taps = c.taps(), by = data.correction ? 1 : 2;  // without zero padding, all sums have the same parity
  const size_t classes = data.correction ? size_t(data.row.back() + 1) * size_t(data.columns) : 1,
               out = size_t(c.out_c);
  const double cost = double(index + 1) * (2.0 * taps / by + 1) * double(out) + 16.0 * double(classes) * double(out);
  if (cost > double(budget)) return false;  // use the float formula instead
  budget -= uint64_t(cost);
  std::vector<float> x(size_t(2 * taps / by + 1));
  step.limit.assign(classes * out, 0);
  step.flip.assign(out / 8 + 2, 0);
  for (int o = 0; o < c.out_c; ++o) {
    evaluate(data, stage, index, o, -taps, by, x);
    const float threshold = step.a[o];
    const bool start = !(x[0] < threshold);
    size_t change = 1;
    while (change < x.size() && !(x[change] < threshold) == start) ++change;
    for (size_t i = change; i < x.size(); ++i)
      if (!(x[i] < threshold) == start) return false;
    // The bit is `start` for sums below `from` and its negation otherwise: (sum >= from) xor start.
    const int from = -taps + by * int(change);
    if (start) step.flip[size_t(o) / 8] |= uint8_t(1 << (o % 8));
    for (size_t k = 0; k < classes; ++k) {
      const int more = data.correction ? data.correction[k * out + size_t(o)] : 0;
      const int twice = taps + more - from;  // sum >= from is 2 * count <= twice
      step.limit[k * out + size_t(o)] = uint16_t(std::min(std::max(twice >= 0 ? twice / 2 + 1 : 0, 0), 65535));
    }
  }
  return true;
}

}  // namespace

void integer_limits(const Graph&, const std::vector<NodeData>& nodes, Stage& stage, uint64_t& budget) {
  const NodeData& data = nodes[size_t(stage.node)];
  bool fits = stage.to == kTile && !data.spatial && data.bconv.taps() < 65535, some = false;
  for (const Step& step : stage.steps) {
    if (step.kind == StepKind::bits) some = true;
    else fits = fits && step.to == kTile && step.kind != StepKind::add && step.kind != StepKind::spatial &&
                step.kind != StepKind::multiply && step.kind != StepKind::activation;
  }
  if (!fits || !some) return;
  for (size_t s = 0; s < stage.steps.size(); ++s)
    if (stage.steps[s].kind == StepKind::bits && !limits_of(data, stage, s, budget)) return;
  stage.limits = true;
}

}  // namespace lcrbnn
