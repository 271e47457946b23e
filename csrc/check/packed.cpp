#include "packed.h"

#include <vector>

#include "../int4_block.h"
#include "../pack.h"

namespace orcaserve::check {
namespace {

struct Place {
  int panel, output;
};

Place place_of(int out, int n_out, bool interleaved) {
  const int part = interleaved ? n_out / 2 : n_out, within = out % part;
  return {interleaved ? 2 * (within / kPanel) + out / part : within / kPanel, within % kPanel};
}

}  // namespace

Packed room_for(Format format, int n_out, int n_in, bool interleaved) {
  Packed packed{};
  Matrix& w = packed.matrix;
  w.format = format;
  w.n_out = n_out;
  w.n_in = n_in;
  w.n_in_padded = padded_inputs(format, n_in);
  w.group = group_inputs(format, w.n_in_padded);
  w.n_panels = count_panels(n_out, interleaved);
  w.panel_bytes = panel_bytes(format, w.n_in_padded, w.group);
  packed.panels.resize(static_cast<size_t>(w.n_panels * w.panel_bytes), 0xee);
  w.panels = packed.panels.data();
  return packed;
}

Packed pack(Format format, const Array<float>& weight, const Array<float>& bias, int n_out, int n_in,
            bool interleaved) {
  Packed packed = room_for(format, n_out, n_in, interleaved);
  Matrix& w = packed.matrix;
  const int n_parts = interleaved ? 2 : 1, part = n_out / n_parts;
  std::vector<FloatPart> parts;
  for (int p = 0; p < n_parts; ++p) parts.push_back({weight.data() + int64_t{p} * part * n_in, n_in, part});
  Team team(2);
  pack_floats(format, parts.data(), n_parts, n_in, interleaved, packed.panels.data(), team);
  if (bias.empty()) return packed;
  packed.bias.resize(static_cast<size_t>(w.n_panels * kPanel), 0);
  for (int out = 0; out < n_out; ++out) {
    const Place at = place_of(out, n_out, interleaved);
    packed.bias[static_cast<size_t>(at.panel * kPanel + at.output)] = bias[static_cast<size_t>(out)];
  }
  w.bias = packed.bias.data();
  return packed;
}

void make_exact(Packed& packed, const Array<float>& weight, const Array<int32_t>& inputs, bool interleaved) {
  Matrix& w = packed.matrix;
  w.n_exact = static_cast<int>(inputs.size());
  packed.exact = inputs;
  packed.exact_weights.resize(static_cast<size_t>(w.n_panels * w.n_exact * kPanel));
  packed.kept.assign(static_cast<size_t>(w.n_in_padded), 1.0f);
  for (int e = 0; e < w.n_exact; ++e) {
    const int input = inputs[static_cast<size_t>(e)];
    packed.kept[static_cast<size_t>(input)] = 0;
    for (int out = 0; out < w.n_out; ++out) {
      const Place at = place_of(out, w.n_out, interleaved);
      packed.exact_weights[static_cast<size_t>((at.panel * w.n_exact + e) * kPanel + at.output)] =
          to_half(weight[static_cast<size_t>(out) * w.n_in + input]);
    }
  }
  w.exact = packed.exact.data();
  w.exact_weights = packed.exact_weights.data();
  w.kept = packed.kept.data();
}

}  // namespace orcaserve::check
