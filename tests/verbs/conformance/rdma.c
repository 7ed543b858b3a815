#include "check.h"
const struct check rdma_checks[] = {{0}};
