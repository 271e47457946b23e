#include "toy_model.h"

#include <cstring>

#include "../pack.h"

namespace orcaserve::check {

// Sizes that no vector, tile, panel or group divides, where the formats allow it: 4 bits want inputs in 32s.
const Shape kLlama{"llama", 96, 8, 2, 20, 224, 151, 2, Norm::kRms, Activation::kSilu, true, false, 20, false, RowFormat::kQ8_0};
const Shape kGpt2{"gpt2", 160, 4, 4, 24, 320, 97, 2, Norm::kLayer, Activation::kGeluTanh, false, true, 0, true, RowFormat::kBFloat16};
const Shape kOdd{"odd", 83, 5, 1, 12, 101, 50, 3, Norm::kRms, Activation::kGelu, true, true, 8, false, RowFormat::kFloat32};

}
