// What the Python side sees: C functions that return 0, or 1 for a number format or operation that they do not know.
#pragma once
#include "vector.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

// The numbers are oneDNN's.
enum Format { FLOAT16 = 1, BFLOAT16 = 2, FLOAT32 = 3 };

template <class F>
static int for_format(int format, F f) {
    if (format == FLOAT16) f(Float16{});
    else if (format == BFLOAT16) f(BFloat16{});
    else if (format == FLOAT32) f(float{});
    else return 1;
    return 0;
}
