// What the Python side sees: C functions that return 0, or 1 for a number format or operation that they do not know.
#pragma once
#include <type_traits>

#include "vector.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

// The numbers are oneDNN's.
enum Format { FLOAT16 = 1, BFLOAT16 = 2, FLOAT32 = 3 };

// Return f(a number of the format), 0 where it returns nothing.
template <class F>
static int for_format(int format, F f) {
    auto call = [&](auto number) {
        if constexpr (std::is_void_v<decltype(f(number))>) return f(number), 0;
        else return f(number);
    };
    return format == FLOAT16 ? call(Float16{}) : format == BFLOAT16 ? call(BFloat16{}) : format == FLOAT32 ? call(float{}) : 1;
}
