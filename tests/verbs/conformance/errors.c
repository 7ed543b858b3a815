#include "check.h"
const struct check errors_checks[] = {{0}};
