// The binding: orcaserve.native._kernels. Python's door to it, with the checks of tensors, is orcaserve/native/.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <stdexcept>

#include "isa.h"
#include "plan.h"

namespace nb = nanobind;

namespace {

using Vector = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void make_plan(orcaserve::AttentionPlan* self, const Vector& starts, const Vector& contexts, const Matrix& table,
               int64_t n_pages, int n_heads, int n_kv_heads, int head_dim, int page_size, float scale, bool bfloat16) {
  const auto n = static_cast<int64_t>(contexts.shape(0));
  if (static_cast<int64_t>(starts.shape(0)) != n + 1 || static_cast<int64_t>(table.shape(0)) != n)
    throw std::invalid_argument("starts, contexts and page tables disagree on the number of requests");
  const auto storage = bfloat16 ? orcaserve::Storage::kBFloat16 : orcaserve::Storage::kFloat32;
  new (self) orcaserve::AttentionPlan(starts.data(), contexts.data(), table.data(), n,
                                      static_cast<int64_t>(table.shape(1)), n_pages, n_heads, n_kv_heads, head_dim,
                                      page_size, scale, storage);
}

// Tensors come as addresses: exchanging them as array objects would cost more than a small layer's attention.
void run(const orcaserve::AttentionPlan& plan, uintptr_t q, uintptr_t k, uintptr_t v, int64_t q_stride,
         int64_t k_stride, int64_t v_stride, uintptr_t keys, uintptr_t values, uintptr_t out, int n_threads) {
  plan.run(reinterpret_cast<const float*>(q), reinterpret_cast<const float*>(k), reinterpret_cast<const float*>(v),
           q_stride, k_stride, v_stride, reinterpret_cast<void*>(keys), reinterpret_cast<void*>(values),
           reinterpret_cast<float*>(out), n_threads);
}

}  // namespace

NB_MODULE(_kernels, m) {
  nb::set_leak_warnings(false);  // a plan that is alive when the interpreter ends is no error

  m.def("available_isas", &orcaserve::available_isas);
  m.def("isa", [] { return std::string(orcaserve::kernels().isa); });
  m.def("set_isa", &orcaserve::set_isa, nb::arg("name"));

  nb::class_<orcaserve::AttentionPlan>(m, "AttentionPlan")
      .def("__init__", &make_plan, nb::arg("starts").noconvert(), nb::arg("contexts").noconvert(),
           nb::arg("page_tables").noconvert(), nb::arg("n_pages"), nb::arg("n_heads"), nb::arg("n_kv_heads"), nb::arg("head_dim"), nb::arg("page_size"), nb::arg("scale"),
           nb::arg("bfloat16"))
      .def_prop_ro("n_tokens", &orcaserve::AttentionPlan::n_tokens)
      .def("run", &run, nb::call_guard<nb::gil_scoped_release>());
}
