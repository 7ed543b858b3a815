#include "check.h"
const struct check atomic_checks[] = {{0}};
