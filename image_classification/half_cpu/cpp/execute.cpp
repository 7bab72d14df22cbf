// A call of oneDNN in one step: where its operands lie, the first of the arguments, then the primitive. Returns oneDNN's
// status.
#include "amx.h"
#include "interface.h"

namespace {

struct Argument {
    int number;
    void* memory;
};

}  // namespace

EXPORT int execute(int (*set_data)(void*, void*), int (*run)(const void*, void*, int, const Argument*),
                   const void* primitive, void* stream, int count, const Argument* arguments, int operands,
                   void* const* pointers) {
    for (int i = 0; i < operands; i++)
        if (int status = set_data(arguments[i].memory, pointers[i])) return status;
    return run(primitive, stream, count, arguments);
}

EXPORT int is_intel() {
    __builtin_cpu_init();
    return __builtin_cpu_is("intel") != 0;
}

// Whether these kernels may multiply by AMX.
EXPORT int has_amx() {
#if HAS_AMX
    return amx::granted();
#else
    return 0;
#endif
}
