#include "packed.h"

#include <vector>

#include "../pack.h"

namespace orcaserve::check {

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

Packed pack(Format format, const Array<float>& weight, const Array<float>& bias, int n_out, int n_in, bool interleaved) {
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
    const int within = out % part, panel = interleaved ? 2 * (within / kPanel) + out / part : within / kPanel;
    packed.bias[static_cast<size_t>(panel * kPanel + within % kPanel)] = bias[static_cast<size_t>(out)];
  }
  w.bias = packed.bias.data();
  return packed;
}

}  // namespace orcaserve::check
