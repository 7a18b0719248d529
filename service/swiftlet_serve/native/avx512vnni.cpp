// AVX-512 with VNNI: a dot product of four bytes is one instruction, which adds in 32 bits.

#include "no_tiles.h"
#include "vnni512.h"

namespace {

struct Isa : Vnni512, NoTiles {
    static constexpr const char* name = "avx512vnni";

    static bool supported() { return x86::avx512vnni(); }
};

}  // namespace

#include "api.h"
