// The module orcaserve.native._kernels. Python's doors to it, with the checks of arrays, are in orcaserve/native/.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "isa.h"
#include "team.h"

namespace nb = nanobind;

void bind_attention(nb::module_& m);
void bind_linear(nb::module_& m);
void bind_model(nb::module_& m);
void bind_rows(nb::module_& m);
void bind_sampling(nb::module_& m);
void bind_shared(nb::module_& m);

NB_MODULE(_kernels, m) {
  nb::set_leak_warnings(false);  // an object that is alive when the interpreter ends is no error

  m.def("available_isas", &orcaserve::available_isas);
  m.def("isa", [] { return std::string(orcaserve::kernels().isa); });
  m.def("set_isa", &orcaserve::set_isa, nb::arg("name"));

  nb::class_<orcaserve::Team>(m, "Team")
      .def(
          "__init__",
          [](orcaserve::Team* self, int n_threads) {
            if (n_threads < 1 || n_threads > orcaserve::Team::kMostThreads)
              throw std::invalid_argument("a team has 1 to " + std::to_string(orcaserve::Team::kMostThreads) + " threads");
            new (self) orcaserve::Team(n_threads);
          },
          nb::arg("n_threads"))
      .def_prop_ro("n_threads", &orcaserve::Team::n_threads)
      .def(
          "take_cores",
          [](orcaserve::Team& self, int first, int total) {
            if (first < 0 || first + self.n_threads() > total) throw std::invalid_argument("there are fewer threads in all");
            self.take_cores(first, total);
          },
          nb::arg("first"), nb::arg("total"))
      .def_prop_ro("progress", &orcaserve::Team::progress);

  bind_linear(m);
  bind_rows(m);
  bind_attention(m);
  bind_sampling(m);
  bind_shared(m);
  bind_model(m);
}
