#include "check.h"
const struct check ud_checks[] = {{0}};
