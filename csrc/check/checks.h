// The checks of the kernels. Each gives one line to the report for everything it looks at; kernels() is the set they run.
#pragma once

#include "report.h"

namespace orcaserve::check {

void check_team(Report& report);  // of no instruction set

}  // namespace orcaserve::check
