// Binding of packing, and of one Linear on packed weights. The door to it is orcaserve/native/packing.py; what is
// checked here is what would otherwise be read or written outside of the arrays.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "buffer.h"
#include "isa.h"
#include "native_model.h"
#include "pack.h"
#include "team.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using orcaserve::Format;

template <typename T, int DIMENSIONS>
using Array = nb::ndarray<T, nb::ndim<DIMENSIONS>, nb::c_contig, nb::device::cpu>;
// Rows may lie apart; the elements of a row follow each other.
template <typename T>
using Rows = nb::ndarray<const T, nb::ndim<2>, nb::device::cpu>;
using Panels = Array<uint8_t, 2>;

void require(bool ok, const char* message) {
  if (!ok) throw std::invalid_argument(message);
}

Format format_of(int number) {
  require(number >= 0 && number <= static_cast<int>(Format::kInt4), "there is no such format");
  return static_cast<Format>(number);
}

template <typename T>
void check_rows(const Rows<T>& rows, size_t n_columns) {
  require(rows.shape(1) == n_columns, "parts have different numbers of inputs");
  require(rows.stride(1) == 1 || rows.shape(1) == 1 || rows.shape(0) == 0, "the elements of a row must follow each other");
}

// `outputs`: of every part.
void check_panels(Format format, const std::vector<int>& outputs, int n_in, bool interleaved, const Panels& panels) {
  require(!outputs.empty(), "there are no parts");
  require(!interleaved || (outputs.size() == 2 && outputs[0] == outputs[1]), "two parts of one size are interleaved");
  int n_out = 0;
  for (int n : outputs) n_out += n;
  require(n_out > 0 && n_in > 0, "a matrix has outputs and inputs");
  require(format != Format::kInt4 || n_in % orcaserve::kInt4Block == 0, "4-bit weights come in blocks of 32 inputs");
  const int padded = orcaserve::padded_inputs(format, n_in);
  require(static_cast<int>(panels.shape(0)) == orcaserve::count_panels(n_out, interleaved) &&
              static_cast<int64_t>(panels.shape(1)) ==
                  orcaserve::panel_bytes(format, padded, orcaserve::group_inputs(format, padded)),
          "the panels have a wrong size");
}

void pack_floats(int number, const std::vector<Rows<float>>& arrays, bool interleaved, const Panels& panels,
                 orcaserve::Team& team) {
  const Format format = format_of(number);
  const size_t n_in = arrays.empty() ? 0 : arrays[0].shape(1);
  std::vector<orcaserve::FloatPart> parts;
  std::vector<int> outputs;
  for (const Rows<float>& rows : arrays) {
    check_rows(rows, n_in);
    outputs.push_back(static_cast<int>(rows.shape(0)));
    parts.push_back({rows.data(), rows.stride(0), outputs.back()});
  }
  check_panels(format, outputs, static_cast<int>(n_in), interleaved, panels);
  nb::gil_scoped_release release;
  orcaserve::pack_floats(format, parts.data(), static_cast<int>(parts.size()), static_cast<int>(n_in), interleaved,
                         panels.data(), team);
}

bool pack_blocks(const std::vector<std::pair<int, Rows<uint8_t>>>& arrays, int n_in, bool interleaved,
                 const Panels& panels, orcaserve::Team& team) {
  std::vector<orcaserve::BlockPart> parts;
  std::vector<int> outputs;
  for (const auto& [number, rows] : arrays) {
    const auto format = static_cast<orcaserve::RowFormat>(number);
    require(format == orcaserve::RowFormat::kQ4_0 || format == orcaserve::RowFormat::kQ4_1, "not a 4-bit kind");
    const int block_bytes = format == orcaserve::RowFormat::kQ4_0 ? 18 : 20;
    check_rows(rows, static_cast<size_t>(n_in / orcaserve::kInt4Block * block_bytes));
    outputs.push_back(static_cast<int>(rows.shape(0)));
    parts.push_back({format, rows.data(), rows.stride(0), outputs.back()});
  }
  check_panels(Format::kInt4, outputs, n_in, interleaved, panels);
  nb::gil_scoped_release release;
  return orcaserve::pack_blocks(parts.data(), static_cast<int>(parts.size()), n_in, interleaved, panels.data(), team);
}

// y [n, n_out] = x [n, n_in] W^T + bias, in the instruction set in use. group: Matrix::group; without, what packing takes.
void linear(int number, int n_out, int n_in, const Array<const uint8_t, 2>& panels,
            const std::optional<Array<const float, 1>>& bias, const Array<const float, 2>& x,
            const Array<float, 2>& y, orcaserve::Team& team, std::optional<int> group) {
  orcaserve::Matrix w{};
  w.format = format_of(number);
  require(n_out > 0 && n_in > 0, "a matrix has outputs and inputs");
  w.n_out = n_out;
  w.n_in = n_in;
  w.n_in_padded = orcaserve::padded_inputs(w.format, n_in);
  w.group = group.value_or(orcaserve::group_inputs(w.format, w.n_in_padded));
  w.n_panels = static_cast<int>(panels.shape(0));
  w.panel_bytes = static_cast<int64_t>(panels.shape(1));
  w.panels = panels.data();
  w.bias = bias ? bias->data() : nullptr;
  orcaserve::check_matrix(w, "the matrix", n_out, n_in);
  require(!bias || bias->size() == static_cast<size_t>(w.n_panels) * orcaserve::kPanel, "the bias has a wrong length");
  require(x.shape(1) == static_cast<size_t>(n_in), "x has a wrong number of columns");
  require(y.shape(0) == x.shape(0) && y.shape(1) == static_cast<size_t>(n_out), "y has a wrong shape");
  const int n = static_cast<int>(x.shape(0));
  if (n == 0) return;
  nb::gil_scoped_release release;
  orcaserve::Buffer workspace;
  void* memory = workspace.reserve(orcaserve::kernels().linear_bytes(w, n));
  orcaserve::kernels().linear(w, x.data(), n, y.data(), memory, team);
}

}  // namespace

void bind_linear(nb::module_& m) {
  m.def("padded_inputs", [](int format, int n_in) { return orcaserve::padded_inputs(format_of(format), n_in); },
        "format"_a, "n_in"_a);
  m.def("group_inputs",
        [](int format, int n_in_padded) { return orcaserve::group_inputs(format_of(format), n_in_padded); },
        "format"_a, "n_in_padded"_a);
  m.def("panel_bytes",
        [](int format, int n_in_padded, int group) {
          require(group > 0, "a group has inputs");
          return orcaserve::panel_bytes(format_of(format), n_in_padded, group);
        },
        "format"_a, "n_in_padded"_a, "group"_a);
  m.def("count_panels", &orcaserve::count_panels, "n_out"_a, "interleaved"_a);
  m.def("pack_floats", &pack_floats, "format"_a, "parts"_a, "interleaved"_a, "panels"_a.noconvert(), "team"_a);
  m.def("pack_blocks", &pack_blocks, "parts"_a, "n_in"_a, "interleaved"_a, "panels"_a.noconvert(), "team"_a);
  m.def("linear", &linear, "format"_a, "n_out"_a, "n_in"_a, "panels"_a.noconvert(), "bias"_a.none(),
        "x"_a.noconvert(), "y"_a.noconvert(), "team"_a, "group"_a.none() = nb::none());
}
