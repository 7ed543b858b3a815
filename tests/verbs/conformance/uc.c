#include "check.h"
const struct check uc_checks[] = {{0}};
