// Binding of the operators on rows and of the float Linears on one panel, in the instruction set in use. For tests: the
// sizes of arrays are checked, their contents are not.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <cstring>
#include <optional>
#include <stdexcept>

#include "isa.h"
#include "rows.h"

namespace orcaserve {
#define ORCASERVE_SET(isa)           \
  namespace isa {                    \
  extern const RowsTable rows_table; \
  }
#include "instruction_sets.inc"
#undef ORCASERVE_SET
}  // namespace orcaserve

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using orcaserve::kPanel;

template <typename T, int DIMENSIONS>
using Array = nb::ndarray<T, nb::ndim<DIMENSIONS>, nb::c_contig, nb::device::cpu>;
using Bias = std::optional<Array<const float, 1>>;

void require(bool ok, const char* message) {
  if (!ok) throw std::invalid_argument(message);
}

const orcaserve::RowsTable& table() {
  static const orcaserve::RowsTable* const kTables[] = {
#define ORCASERVE_SET(isa) &orcaserve::isa::rows_table,
#include "instruction_sets.inc"
#undef ORCASERVE_SET
  };
  for (const orcaserve::RowsTable* t : kTables)
    if (std::strcmp(t->isa, orcaserve::kernels().isa) == 0) return *t;
  throw std::logic_error("no table of the instruction set in use");
}

int length(size_t n) { return static_cast<int>(n); }

// out[n_rows, kPanel] of rows row .. row + n_rows of x. The panel ahead is the next one, where there is one.
void multiply(bool bfloat16, const Array<const uint8_t, 2>& panels, int n_in, int panel, const Array<const float, 2>& x,
              int row, const Array<float, 2>& out) {
  const int padded = bfloat16 ? (n_in + 1) / 2 * 2 : n_in, n_rows = length(out.shape(0));
  orcaserve::Matrix w{};
  w.format = bfloat16 ? orcaserve::Format::kBFloat16 : orcaserve::Format::kFloat32;
  w.n_in = n_in;
  w.n_in_padded = w.group = padded;
  w.n_panels = length(panels.shape(0));
  w.n_out = w.n_panels * kPanel;
  w.panel_bytes = static_cast<int64_t>(panels.shape(1));
  w.panels = panels.data();
  require(w.panel_bytes == int64_t{padded} * kPanel * (bfloat16 ? 2 : 4), "panels of another size");
  require(panel >= 0 && panel < w.n_panels, "no such panel");
  require(n_rows >= 1 && n_rows <= orcaserve::kTileRows && out.shape(1) == kPanel, "out must be [1..32, 48]");
  require(length(x.shape(1)) == n_in && row >= 0 && row + n_rows <= length(x.shape(0)), "rows outside x");
  orcaserve::Operand operand{};
  operand.x = x.data();
  operand.stride = static_cast<int64_t>(x.shape(1));
  const uint8_t* ahead = panel + 1 < w.n_panels ? w.panels + (panel + 1) * w.panel_bytes : nullptr;
  (bfloat16 ? table().multiply_bfloat16 : table().multiply_float32)(w, panel, operand, row, n_rows, out.data(), ahead);
  table().end_multiply();
}

// Row `row` of a table goes to out, or is added to it.
void read_row(int format, const Array<const uint8_t, 2>& rows, int64_t row, const Array<float, 1>& out, bool add) {
  const int width = length(out.shape(0));
  require(format >= 0 && format <= 4, "no such format of rows");
  constexpr struct {
    int numbers, bytes;
  } kBlocks[] = {{1, 4}, {1, 2}, {32, 34}, {32, 18}, {32, 20}};
  const auto block = kBlocks[format];
  require(width % block.numbers == 0 && rows.shape(1) == static_cast<size_t>(width / block.numbers * block.bytes),
          "rows of another width");
  require(row >= 0 && row < static_cast<int64_t>(rows.shape(0)), "no such row");
  const orcaserve::Table t{static_cast<orcaserve::RowFormat>(format), static_cast<int64_t>(rows.shape(0)),
                           static_cast<int64_t>(rows.shape(1)), rows.data()};
  (add ? table().add_row : table().read_row)(t, row, width, out.data());
}

void normalise(int kind, float eps, const Array<const float, 1>& weight, const Bias& bias,
               const Array<const float, 1>& x, const Array<float, 1>& out) {
  const size_t n = x.shape(0);
  require(kind == 0 || kind == 1, "no such norm");
  require(weight.shape(0) == n && out.shape(0) == n && (!bias || bias->shape(0) == n), "lengths differ");
  const orcaserve::NormWeights w{weight.data(), bias ? bias->data() : nullptr};
  table().normalise(static_cast<orcaserve::Norm>(kind), eps, w, x.data(), length(n), out.data());
}

// Enters x as row `row` of q [rows, n_in_padded], scales and sums [rows, groups].
void quantise(bool int4, const Array<const float, 1>& x, const Array<int8_t, 2>& q, const Array<float, 2>& scales,
              const Array<int32_t, 2>& sums, int row) {
  orcaserve::Matrix w{};
  w.format = int4 ? orcaserve::Format::kInt4 : orcaserve::Format::kInt8;
  w.n_in = length(x.shape(0));
  w.n_in_padded = length(q.shape(1));
  const int n_groups = length(scales.shape(1));
  require(n_groups > 0 && w.n_in_padded % n_groups == 0, "groups of unlike sizes");
  w.group = w.n_in_padded / n_groups;
  require(int4 ? w.group == orcaserve::kInt4Block && w.n_in == w.n_in_padded
               : w.group % orcaserve::kHadamard == 0 && w.n_in <= w.n_in_padded,
          "a group of a wrong size");
  require(sums.shape(1) == scales.shape(1), "scales and sums differ");
  require(row >= 0 && row < length(q.shape(0)) && row < length(scales.shape(0)) && row < length(sums.shape(0)),
          "no such row");
  orcaserve::Operand to{};
  to.q = q.data();
  to.q_stride = w.n_in_padded;
  to.scales = scales.data();
  to.sums = sums.data();
  to.n_groups = n_groups;
  table().quantise(w, x.data(), to, row);
}

// A tile [n_rows, kPanel] whose first n_cols columns go to columns col .. col + n_cols of y.
struct Tile {
  const Array<const float, 2>& values;
  int n_cols;
  const Bias& bias;
  const Array<float, 2>& y;
  int col;

  int n_rows() const { return length(values.shape(0)); }
  const float* bias_data() const { return bias ? bias->data() : nullptr; }
  float* to() const { return y.data() + col; }
  int64_t stride() const { return static_cast<int64_t>(y.shape(1)); }
  void check() const {
    require(values.shape(1) == kPanel && (!bias || bias->shape(0) == kPanel), "tile and bias must be 48 wide");
    require(n_cols >= 1 && n_cols <= kPanel && col >= 0 && col + n_cols <= length(y.shape(1)), "columns outside y");
    require(n_rows() <= length(y.shape(0)), "more rows than y has");
  }
};

orcaserve::Activation activation(int number) {
  require(number >= 0 && number <= 3, "no such activation");
  return static_cast<orcaserve::Activation>(number);
}

void store_tile(const Array<const float, 2>& tile, int n_cols, const Bias& bias, const Array<float, 2>& y, int col,
                bool add) {
  const Tile t{tile, n_cols, bias, y, col};
  t.check();
  (add ? table().add_tile : table().store_tile)(tile.data(), t.n_rows(), n_cols, t.bias_data(), t.to(), t.stride());
}

void activate_tile(int act, const Array<const float, 2>& tile, int n_cols, const Bias& bias, const Array<float, 2>& y,
                   int col) {
  const Tile t{tile, n_cols, bias, y, col};
  t.check();
  table().activate_tile(activation(act), tile.data(), t.n_rows(), n_cols, t.bias_data(), t.to(), t.stride());
}

void gate_tile(int act, const Array<const float, 2>& gate, const Array<const float, 2>& up, int n_cols,
               const Bias& gate_bias, const Bias& up_bias, const Array<float, 2>& y, int col) {
  const Tile g{gate, n_cols, gate_bias, y, col}, u{up, n_cols, up_bias, y, col};
  g.check();
  u.check();
  require(g.n_rows() == u.n_rows(), "gate and up differ in rows");
  table().gate_tile(activation(act), gate.data(), up.data(), g.n_rows(), n_cols, g.bias_data(), u.bias_data(), g.to(),
                    g.stride());
}

}  // namespace

void bind_rows(nb::module_& m) {
  nb::module_ rows = m.def_submodule("rows", "Operators on a row, panel or tile, in the set in use; for tests.");
  rows.def("multiply", &multiply, "bfloat16"_a, "panels"_a.noconvert(), "n_in"_a, "panel"_a, "x"_a.noconvert(), "row"_a,
           "out"_a.noconvert());
  rows.def("read_row", &read_row, "format"_a, "rows"_a.noconvert(), "row"_a, "out"_a.noconvert(), "add"_a = false);
  rows.def("normalise", &normalise, "kind"_a, "eps"_a, "weight"_a.noconvert(), "bias"_a.none(), "x"_a.noconvert(),
           "out"_a.noconvert());
  rows.def("quantise", &quantise, "int4"_a, "x"_a.noconvert(), "q"_a.noconvert(), "scales"_a.noconvert(),
           "sums"_a.noconvert(), "row"_a);
  rows.def("store_tile", &store_tile, "tile"_a.noconvert(), "n_cols"_a, "bias"_a.none(), "y"_a.noconvert(), "col"_a,
           "add"_a = false);
  rows.def("activate_tile", &activate_tile, "activation"_a, "tile"_a.noconvert(), "n_cols"_a, "bias"_a.none(),
           "y"_a.noconvert(), "col"_a);
  rows.def("gate_tile", &gate_tile, "activation"_a, "gate"_a.noconvert(), "up"_a.noconvert(), "n_cols"_a,
           "gate_bias"_a.none(), "up_bias"_a.none(), "y"_a.noconvert(), "col"_a);
}
