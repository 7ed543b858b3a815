#include "check.h"
const struct check many_qps_checks[] = {{0}};
