#include "check.h"
const struct check mw_checks[] = {{0}};
