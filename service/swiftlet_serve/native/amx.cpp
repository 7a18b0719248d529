// AMX (Intel, Sapphire Rapids and later): products of tiles, for int8 and for attention. Everything else is AVX-512.

#include "bf16.h"

#ifdef SWIFTLET_TILE_MODEL
#include "tile_model.h"
#else
#include "tile_registers.h"
#endif

namespace {

struct Isa : Bf16, TileRegisters {
    static constexpr const char* name = "amx";
    static constexpr int tile_vectors = 1;  // a panel of weights is one tile wide, so that its tiles are contiguous

    static bool supported() { return x86::amx(); }
};

}  // namespace

#include "api.h"
