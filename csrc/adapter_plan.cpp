#include "adapter_plan.h"

#include <algorithm>

namespace orcaserve {

void AdapterPlan::lay_out(const Adapter* const* adapter_of, int n_members, Iteration* it) {
  it->adapters = nullptr;
  it->adapter_width = 0;
  if (adapter_of == nullptr) return;
  std::vector<const Adapter*> different;
  for (int r = 0; r < it->n_requests; ++r) {
    const Adapter* adapter = adapter_of[r];
    if (adapter == nullptr || std::find(different.begin(), different.end(), adapter) != different.end()) continue;
    different.push_back(adapter);
    it->adapter_width = std::max(it->adapter_width, adapter->width);
  }
  if (it->adapter_width == 0) return;
  // Places first, pointers when nothing grows any more.
  struct Places {
    size_t rows, groups, pieces;
  };
  std::vector<Places> places;
  rows_.clear();
  groups_.clear();
  pieces_.clear();
  for (int begin = 0; begin < it->n_tokens; begin += kRowBlock) {
    places.push_back({rows_.size(), groups_.size(), pieces_.size()});
    const int end = std::min(begin + kRowBlock, it->n_tokens);
    // Each member has more than one piece to take, if there are rows enough.
    const int piece_rows = std::clamp((end - begin) / (2 * n_members), 1, kRunRows);
    lay_out_block(adapter_of, different, piece_rows, begin, end, *it);
  }
  places.push_back({rows_.size(), groups_.size(), pieces_.size()});
  blocks_.clear();
  for (size_t i = 0; i + 1 < places.size(); ++i)
    blocks_.push_back({rows_.data() + places[i].rows, groups_.data() + places[i].groups,
                       static_cast<int>(places[i + 1].groups - places[i].groups), pieces_.data() + places[i].pieces,
                       static_cast<int>(places[i + 1].pieces - places[i].pieces)});
  it->adapters = blocks_.data();
}

void AdapterPlan::lay_out_block(const Adapter* const* adapter_of, const std::vector<const Adapter*>& different, int piece_rows,
                                int begin, int end, const Iteration& it) {
  const size_t first_row = rows_.size(), first_piece = pieces_.size();
  const auto add = [&](const Adapter* adapter) {
    const auto first = static_cast<int32_t>(rows_.size() - first_row);
    for (int r = it.request_of[begin]; r <= it.request_of[end - 1]; ++r) {
      if (adapter_of[r] != adapter) continue;
      const int to = std::min(it.starts[r + 1], end);
      for (int row = std::max(it.starts[r], begin); row < to; ++row) rows_.push_back(row - begin);
    }
    const auto n = static_cast<int32_t>(rows_.size() - first_row) - first;
    if (n > 0 && adapter != nullptr) groups_.push_back({adapter, first, n});
    for (int32_t done = 0; done < n; done += piece_rows)
      pieces_.push_back({adapter, first + done, std::min(piece_rows, n - done)});
  };
  for (const Adapter* adapter : different) add(adapter);
  add(nullptr);
  const auto row_of = [&](const AdapterRun& piece) { return rows_[first_row + static_cast<size_t>(piece.first)]; };
  std::sort(pieces_.begin() + static_cast<ptrdiff_t>(first_piece), pieces_.end(),
            [&](const AdapterRun& a, const AdapterRun& b) { return row_of(a) < row_of(b); });
}

}  // namespace orcaserve
