// What the Python side sees: C functions that return 0, or 1 for a number format or operation that they do not know.
#pragma once
#include <type_traits>

#include "vector.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

// The numbers are oneDNN's.
enum Format { FLOAT16 = 1, BFLOAT16 = 2, FLOAT32 = 3 };

// The first number of a tensor that is read, or written, in whichever format the call names.
struct Source {
    const void* data;
    template <class T>
    operator const T*() const { return (const T*)data; }
};
struct Target {
    void* data;
    template <class T>
    operator T*() const { return (T*)data; }
};

// Return f(a number of the format), 0 where it returns nothing.
template <class F>
static int for_format(int format, F f) {
    auto call = [&](auto number) {
        if constexpr (std::is_void_v<decltype(f(number))>) return f(number), 0;
        else return f(number);
    };
    return format == FLOAT16 ? call(Float16{}) : format == BFLOAT16 ? call(BFloat16{}) : format == FLOAT32 ? call(float{}) : 1;
}

// The same for elements of so many bytes, whatever their format.
template <class F>
static int for_width(long bytes, F f) {
    return bytes == 2 ? f(uint16_t{}), 0 : bytes == 4 ? f(uint32_t{}), 0 : 1;
}
