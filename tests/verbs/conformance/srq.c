#include "check.h"
const struct check srq_checks[] = {{0}};
