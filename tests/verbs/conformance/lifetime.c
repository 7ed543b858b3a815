#include "check.h"
const struct check lifetime_checks[] = {{0}};
