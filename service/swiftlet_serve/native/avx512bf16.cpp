// AVX-512 with VNNI and BF16.

#include "bf16.h"
#include "no_tiles.h"

namespace {

struct Isa : Bf16, NoTiles {
    static constexpr const char* name = "avx512bf16";

    static bool supported() { return x86::avx512bf16(); }
};

}  // namespace

#include "api.h"
