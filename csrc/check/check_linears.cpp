// Every kind of matrix on any number of rows: the oracle's numbers, and the same bits for a row whatever is beside it.
#include <vector>

#include "../isa.h"
#include "../team.h"
#include "checks.h"
#include "compare.h"
#include "oracle.h"
#include "packed.h"

namespace orcaserve::check {
namespace {

struct Size {
  int n_out, n_in;
};

// Outputs and inputs that fill panels, vectors and groups, and that do not.
const Size kSizes[] = {{1, 3}, {48, 64}, {50, 83}, {97, 200}, {144, 320}};
const Size kSizesInt4[] = {{1, 32}, {48, 64}, {97, 224}};

Array<float> run(const Packed& w, const Array<float>& x, int n, int n_threads) {
  const Matrix& m = w.matrix;
  Array<float> y(static_cast<size_t>(n) * m.n_out, NAN);
  Array<uint8_t> workspace(kernels().linear_bytes(m, n));
  Team team(n_threads);
  kernels().linear(m, x.data(), n, y.data(), workspace.data(), team);
  return y;
}

Packed random_matrix(Random& random, const Size& size, Format format, bool may_have_exact = true) {
  Array<float> weight(static_cast<size_t>(size.n_out) * size.n_in), bias(static_cast<size_t>(size.n_out));
  random.fill(weight, 0.3);
  random.fill(bias, 0.3);
  Packed packed = pack(format, weight, bias, size.n_out, size.n_in);
  if (may_have_exact && format == Format::kInt8 && random.below(2)) make_exact(packed, weight, {0, size.n_in / 2});
  return packed;
}

// Rows of activations; now and then one of zeros, and one with an outlier.
Array<float> random_rows(Random& random, int n, int width) {
  Array<float> x(static_cast<size_t>(n) * width);
  random.fill(x, 1.0);
  for (int row = 0; row < n; ++row) {
    float* first = x.data() + static_cast<ptrdiff_t>(row) * width;
    if (row % 7 == 3) std::fill(first, first + width, 0.0f);
    if (row % 7 == 5) first[random.below(width)] = 50;
  }
  return x;
}

Array<float> rows_of(const Array<float>& x, int first, int n, int width) {
  const auto begin = x.begin() + static_cast<ptrdiff_t>(first) * width;
  return {begin, begin + static_cast<ptrdiff_t>(n) * width};
}

void check_size(const Size& size, Format format) {
  constexpr int kRows = 70;
  Random random(static_cast<uint64_t>(size.n_in));
  const Packed w = random_matrix(random, size, format);
  const Array<float> x = random_rows(random, kRows, size.n_in), y = run(w, x, kRows, 1);
  const std::string what = "[" + std::to_string(size.n_out) + ", " + std::to_string(size.n_in) + "]: ";

  const bool exact = format == Format::kFloat32 || format == Format::kBFloat16;
  const Dense dense(w.matrix);
  Closeness closeness;
  for (int row = 0; row < kRows; ++row) {
    const Array<float> in = rows_of(x, row, 1, size.n_in);
    closeness.add(rows_of(y, row, 1, size.n_out), dense({in.begin(), in.end()}));
  }
  closeness.expect_within(1e-5, exact ? 1e-5 : 0.05);

  for (int n_threads : {2, 4}) expect(same_bits(run(w, x, kRows, n_threads), y), what + "threads change bits");
  for (int n : {1, 2, 3, 4, 5, 7, 8, 11, 16, 17, 23, 31, 32, 33, 64})
    for (int first : {0, kRows - n})
      expect(same_bits(run(w, rows_of(x, first, n, size.n_in), n, 1), rows_of(y, first, n, size.n_out)),
             what + std::to_string(n) + " rows have other bits than among " + std::to_string(kRows));
}

}  // namespace

void check_linears(Report& report) {
  for (Format format : {Format::kFloat32, Format::kBFloat16, Format::kInt8, Format::kInt4})
    report.check(std::string("linear ") + name(format), [&] {
      if (format == Format::kInt4)
        for (const Size& size : kSizesInt4) check_size(size, format);
      else
        for (const Size& size : kSizes) check_size(size, format);
    });
}

void check_tiles(Report& report) {
  report.check("int8 on AMX tiles has the bits of AVX-512 VNNI", [] {
    for (const Size& size : kSizes)
      for (int n : {1, 3, 4, 5, 15, 16, 17, 18, 25, 31, 32, 33, 50}) {
        Random random(static_cast<uint64_t>(n));
        // Exact inputs are summed in another order there.
        const Packed w = random_matrix(random, size, Format::kInt8, false);
        const Array<float> x = random_rows(random, n, size.n_in);
        set_isa("avx512vnni");
        const Array<float> y = run(w, x, n, 1);
        set_isa("amx_shim");
        expect(same_bits(run(w, x, n, 2), y), std::to_string(n) + " rows differ");
      }
  });
}

}  // namespace orcaserve::check
