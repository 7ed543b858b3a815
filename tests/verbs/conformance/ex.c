#include "check.h"
const struct check ex_checks[] = {{0}};
