// The oracle: plain loops, compiled for the baseline CPU.
#define GQ_LEVEL 0
#define GQ_NAMESPACE scalar
#include "gq/table.hpp"
