// Binding of Mailbox and SharedSums; Python's door to them is orcaserve/data_plane/shared_memory.py.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <stdexcept>

#include "shared_numbers.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using Memory = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<float, nb::c_contig, nb::device::cpu>;
using ConstFloats = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;

// `size` bytes of the memory from `at`.
void* piece(const Memory& memory, int64_t at, int64_t size) {
  if (at < 0 || size < 0 || at + size > static_cast<int64_t>(memory.size()))
    throw std::invalid_argument("the shared memory is too small");
  void* p = memory.data() + at;
  if (reinterpret_cast<uintptr_t>(p) % 64 != 0) throw std::invalid_argument("the shared memory is not aligned");
  return p;
}

void require_sizes(bool ok) {
  if (!ok) throw std::invalid_argument("sizes of shared memory make no sense");
}

}  // namespace

void bind_shared(nb::module_& m) {
  using orcaserve::Mailbox;
  using orcaserve::SharedSums;
  nb::class_<Mailbox>(m, "Mailbox")
      .def(
          "__init__",
          [](Mailbox* self, const Memory& memory, int64_t at, int n_slots, int64_t slot_bytes) {
            require_sizes(n_slots > 0 && slot_bytes > 0);
            new (self) Mailbox(piece(memory, at, Mailbox::bytes(n_slots, slot_bytes)), n_slots, slot_bytes);
          },
          "memory"_a.noconvert(), "at"_a, "n_slots"_a, "slot_bytes"_a, nb::keep_alive<1, 2>())
      .def_static("bytes", &Mailbox::bytes, "n_slots"_a, "slot_bytes"_a)
      .def(
          "put", [](Mailbox& self, const ConstFloats& x) { self.put(x.data(), static_cast<int64_t>(x.size())); },
          "x"_a.noconvert(), nb::call_guard<nb::gil_scoped_release>())
      .def(
          "take", [](Mailbox& self, const Floats& x) { self.take(x.data(), static_cast<int64_t>(x.size())); },
          "x"_a.noconvert(), nb::call_guard<nb::gil_scoped_release>());
  nb::class_<SharedSums>(m, "SharedSums")
      .def(
          "__init__",
          [](SharedSums* self, const Memory& memory, int64_t at, int shard, int n_shards, int64_t capacity) {
            require_sizes(0 <= shard && shard < n_shards && n_shards > 1 && capacity > 0 && capacity % 16 == 0);
            new (self) SharedSums(piece(memory, at, SharedSums::bytes(n_shards, capacity)), shard, n_shards, capacity);
          },
          "memory"_a.noconvert(), "at"_a, "shard"_a, "n_shards"_a, "capacity"_a, nb::keep_alive<1, 2>())
      .def_static("bytes", &SharedSums::bytes, "n_shards"_a, "capacity"_a)
      .def_prop_ro("waiting", &SharedSums::waiting)
      .def(
          "add", [](SharedSums& self, const Floats& x) { self.add(x.data(), static_cast<int64_t>(x.size())); },
          "x"_a.noconvert(), nb::call_guard<nb::gil_scoped_release>());
}
