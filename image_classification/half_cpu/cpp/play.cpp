// Calls of functions of this library, one after the other.
#include "interface.h"

namespace {

// Linux on x86-64 hands over integers and pointers in registers and then on the stack, floating numbers in registers of
// their own, each kind in its order, and whoever is called takes what he declares. A float is the lower half of a
// register.
using Function = int(long, long, long, long, long, long, long, long, long, long, long, long, long, long, long, long, long,
                     long, long, long, double, double, double, double, double, double, double, double);

struct Call {
    Function* function;
    long integers[20];
    double floats[8];
};

}  // namespace

// Returns where it stopped: at `last`, or at the first call with a status that is not 0.
EXPORT long play(const Call* calls, long first, long last, int* status) {
    for (long i = first; i < last; i++) {
        const long* n = calls[i].integers;
        const double* x = calls[i].floats;
        *status = calls[i].function(n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9], n[10], n[11], n[12], n[13],
                                    n[14], n[15], n[16], n[17], n[18], n[19], x[0], x[1], x[2], x[3], x[4], x[5], x[6],
                                    x[7]);
        if (*status) return i;
    }
    return last;
}
