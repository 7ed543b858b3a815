#include "check.h"
const struct check send_checks[] = {{0}};
