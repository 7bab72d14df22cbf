// Faults of a kernel by name, each of which ends the process, or one product of tiles.
#include <string>

#include "amx.h"

int main(int, char** arguments) {
    const std::string fault = arguments[1];
    alignas(64) float left[256] = {}, right[256] = {}, sums[256] = {};
    if (fault == "not asked for") _tile_release();
    amx::granted();
    if (fault == "no configuration") _tile_zero(0);
    if (fault == "another's") {
        amx_set_others();
        _tile_loadd(0, left, 64);
    }
    {
        amx::Use use;
        if (fault == "not written") _tile_stored(0, sums, 64);
        if (fault == "left behind") _tile_loadd(4, left, 64);
    }
    if (fault == "left behind") {
        amx::Use use;
        _tile_zero(0), _tile_loadd(6, right, 64), _tile_dpbf16ps(0, 4, 6);
    }
    if (fault == "after release") _tile_stored(0, sums, 64);
    amx::Shape shape;
    shape.palette = 1;
    for (int tile : {0, 4, 6}) shape.bytes[tile] = 64, shape.rows[tile] = 16;
    if (fault == "too tall") shape.rows[0] = 17;
    if (fault == "do not fit") shape.rows[6] = 15;
    _tile_loadconfig(&shape);
    fread(left, 4, 256, stdin), fread(right, 4, 256, stdin), fread(sums, 4, 256, stdin);
    _tile_loadd(0, sums, 64), _tile_loadd(4, left, 64), _tile_stream_loadd(6, right, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_stored(0, sums, 64);
    _tile_release();
    fwrite(sums, 4, 256, stdout);
}
