#include "check.h"
const struct check xrc_checks[] = {{0}};
