#include "check.h"
const struct check events_checks[] = {{0}};
