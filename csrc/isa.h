// The instruction sets this build has kernels for, and the one in use.
#pragma once

#include <string>
#include <vector>

#include "kernels.h"

namespace orcaserve {

// Names of the sets that this build has and this machine can run, narrowest first. Never empty.
std::vector<std::string> available_isas();

// The set in use: the widest available one until set_isa names another.
const KernelTable& kernels();

// Throws std::invalid_argument if the set is unknown or this machine lacks it.
void set_isa(const std::string& name);

}  // namespace orcaserve
