#include "host.h"

#include <algorithm>
#include <cstring>

namespace orcaserve::check {
namespace {

constexpr int kPageSize = 16;

int64_t bytes_of(Storage storage) {
  return storage == Storage::kFloat32 ? 4 : storage == Storage::kBFloat16 ? 2 : 1;
}

// What others may have left in a page: numbers, however large.
void litter(Array<uint8_t>& memory, Storage storage) {
  const float large = 1e30f;
  for (size_t i = 0; i < memory.size(); i += 4) std::memcpy(memory.data() + i, &large, 4);
  if (storage != Storage::kInt8)  // as bfloat16 its lower half is 0xf2ca: -8e30
    return;
  Random random(5);
  for (uint8_t& byte : memory) byte = static_cast<uint8_t>(random.bits());
}

}  // namespace

const ToyAdapter* adapter_of(int request, const std::vector<const ToyAdapter*>& adapters) {
  const size_t which = static_cast<size_t>(request) % (adapters.size() + 1);
  return which ? adapters[which - 1] : nullptr;
}

Host::Host(const Model& model, Storage storage, int n_pages, std::vector<const ToyAdapter*> adapters)
    : vocab_(model.vocab), hidden_(model.hidden), adapters_(std::move(adapters)) {
  // The largest window, 0 if some layer has none.
  window_ = model.layers[0].window;
  for (int i = 0; i < model.n_layers; ++i)
    window_ = window_ && model.layers[i].window ? std::max(window_, model.layers[i].window) : 0;
  const int64_t slots = int64_t{n_pages} * model.n_kv_heads * kPageSize;
  region_ = {};
  region_.storage = storage;
  region_.page_size = kPageSize;
  region_.n_pages = n_pages;
  region_.layer_bytes = slots * model.head_dim * bytes_of(storage);
  for (Array<uint8_t>* memory : {&keys_, &values_}) {
    memory->resize(static_cast<size_t>(model.n_layers * region_.layer_bytes));
    litter(*memory, storage);
  }
  region_.keys = keys_.data();
  region_.values = values_.data();
  if (storage == Storage::kInt8) {
    for (Array<float>* scales : {&key_scales_, &value_scales_})
      scales->assign(static_cast<size_t>(model.n_layers * slots), 1e30f);
    region_.key_scales = key_scales_.data();
    region_.value_scales = value_scales_.data();
    region_.layer_scales = slots;
  }
  // Handed out in no order, so that a request's pages lie anywhere.
  for (int page = 0; page < n_pages; ++page) free_pages_.push_back(page);
  Random random(7);
  for (int page = n_pages - 1; page > 0; --page) std::swap(free_pages_[page], free_pages_[random.below(page + 1)]);
}

KVRegion Host::from_layer(int layer) const {
  KVRegion part = region_;
  part.keys += layer * part.layer_bytes;
  part.values += layer * part.layer_bytes;
  if (part.key_scales) {
    part.key_scales += layer * part.layer_scales;
    part.value_scales += layer * part.layer_scales;
  }
  return part;
}

Logits Host::run(const std::vector<NativeModel*>& stages, Team& team, const Batch& batch, const Turns& turns,
                 double* const* observed) {
  const size_t n = batch.size();
  Array<int32_t> starts{0}, contexts, tokens, frequency_set, logit_rows;
  size_t width = 0;
  bool shares = false;
  for (const Piece& piece : batch) {
    Request& request = requests_[piece.request];
    if (piece.n_shared > 0) {
      const std::vector<int32_t>& pages = requests_[piece.before].pages;
      request.pages.assign(pages.begin(), pages.begin() + piece.n_shared / kPageSize);
      request.n_tokens = piece.n_shared;
      shares = true;
    }
    // Pages before all windows go to others.
    for (int page = 0; window_ && (page + 1) * kPageSize <= request.n_tokens + 1 - window_; ++page) {
      if (request.pages[static_cast<size_t>(page)] < 0) continue;
      free_pages_.insert(free_pages_.begin(), request.pages[static_cast<size_t>(page)]);
      request.pages[static_cast<size_t>(page)] = -1;
    }
    contexts.push_back(request.n_tokens);
    frequency_set.push_back(piece.request % 2);
    tokens.insert(tokens.end(), piece.tokens.begin(), piece.tokens.end());
    starts.push_back(static_cast<int32_t>(tokens.size()));
    logit_rows.push_back(starts.back() - 1);
    request.n_tokens += static_cast<int>(piece.tokens.size());
    while (static_cast<int>(request.pages.size()) * kPageSize < request.n_tokens) {
      if (free_pages_.empty()) throw std::runtime_error("the check's region has too few pages");
      request.pages.push_back(free_pages_.back());
      free_pages_.pop_back();
    }
    width = std::max(width, request.pages.size());
  }
  Array<int32_t> table(n * width, -1);
  for (size_t r = 0; r < n; ++r) {
    const std::vector<int32_t>& pages = requests_[batch[r].request].pages;
    std::copy(pages.begin(), pages.end(), table.begin() + static_cast<std::ptrdiff_t>(r * width));
  }
  Array<float> logits(n * static_cast<size_t>(vocab_)), hidden(tokens.size() * static_cast<size_t>(hidden_));
  Iteration it{};
  it.n_requests = static_cast<int>(n);
  it.n_tokens = static_cast<int>(tokens.size());
  it.starts = starts.data();
  it.contexts = contexts.data();
  it.table = table.data();
  it.table_width = static_cast<int64_t>(width);
  for (int i = 0; i < kRopes; ++i) it.frequencies[i] = {turns[i].data(), frequency_set.data()};
  it.observed = observed;
  it.shares = shares;
  int layer = 0;
  for (NativeModel* stage : stages) {
    Iteration part = it;
    if (stage->model().first) part.token_ids = tokens.data();
    if (stages.size() > 1) part.hidden = hidden.data();
    if (stage->model().last) {
      part.n_logits = static_cast<int>(n);
      part.logit_rows = logit_rows.data();
      part.logits = logits.data();
    }
    std::vector<Adapter> adapters;
    for (const Piece& piece : batch) {
      const ToyAdapter* adapter = adapter_of(piece.request, adapters_);
      adapters.push_back(adapter ? adapter->from_layer(layer) : Adapter{});
    }
    // Rows are told to have one adapter by its address.
    std::vector<const Adapter*> of;
    for (size_t r = 0; r < n; ++r) {
      size_t first = 0;
      while (adapters[first].layers != adapters[r].layers) ++first;
      of.push_back(adapters[r].layers ? &adapters[first] : nullptr);
    }
    stage->run(part, from_layer(layer), team, adapters_.empty() ? nullptr : of.data());
    layer += stage->model().n_layers;
  }
  Logits rows;
  for (size_t r = 0; r < n; ++r) {
    const float* row = logits.data() + r * static_cast<size_t>(vocab_);
    rows.emplace_back(row, row + vocab_);
  }
  return rows;
}

}  // namespace orcaserve::check
