#include "check.h"
const struct check flush_checks[] = {{0}};
