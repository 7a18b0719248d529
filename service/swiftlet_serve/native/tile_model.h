// The eight tiles of AMX in software, for the tests: the same products to the bit on any CPU. If `SWIFTLET_TILE_FAULT` is
// n, every n-th tile that is stored is wrong, as on a machine that loses tiles.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace {

struct TileRegisters {
    static constexpr bool tiles = true;

    static bool permitted() { return true; }

    struct InUse {
        ~InUse() {}
    };

    union Tile {
        std::uint8_t bytes[16][64];
        std::int8_t signed_bytes[16][64];
        std::uint16_t bf16[16][32];
        std::int32_t integers[16][16];
        float floats[16][16];
    };
    static Tile& tile(int t) {
        static thread_local Tile tiles[8];
        return tiles[t];
    }

    template <int t> static void tile_zero() { std::memset(&tile(t), 0, sizeof(Tile)); }
    template <int t> static void tile_load(const void* p, long stride) {
        for (int row = 0; row < 16; row++) std::memcpy(tile(t).bytes[row], static_cast<const char*>(p) + row * stride, 64);
    }
    template <int t> static void tile_stream(const void* p, long stride) { tile_load<t>(p, stride); }
    template <int t> static void tile_store(void* p, long stride) {
#ifdef SWIFTLET_TILE_FAULT
        static thread_local int stored = 0;
        if (++stored % SWIFTLET_TILE_FAULT == 0)
            for (auto& row : tile(t).bytes) row[3] ^= 1;  // a large change of an integer, and of a float
#endif
        for (int row = 0; row < 16; row++) std::memcpy(static_cast<char*>(p) + row * stride, tile(t).bytes[row], 64);
    }
    template <int sum, int a, int b> static void tile_dot() {
        for (int m = 0; m < 16; m++)
            for (int n = 0; n < 16; n++)
                for (int k = 0; k < 64; k++)
                    tile(sum).integers[m][n] += tile(a).bytes[m][k] * tile(b).signed_bytes[k / 4][4 * n + k % 4];
    }
    // Intel's manual: the products of the even and of the odd numbers have sums of their own, which are added in the end.
    // Subnormal numbers count as 0.
    template <int sum, int a, int b> static void tile_dot_bf16() {
        for (int m = 0; m < 16; m++)
            for (int n = 0; n < 16; n++) {
                float even = 0, odd = 0;
                for (int k = 0; k < 16; k++) {
                    even = normal(std::fma(wide(tile(a).bf16[m][2 * k]), wide(tile(b).bf16[k][2 * n]), even));
                    odd = normal(std::fma(wide(tile(a).bf16[m][2 * k + 1]), wide(tile(b).bf16[k][2 * n + 1]), odd));
                }
                float& to = tile(sum).floats[m][n];
                to = normal(normal(to) + normal(even + odd));
            }
    }

    static float normal(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }
    static float wide(std::uint16_t bf16) {
        const std::uint32_t bits = static_cast<std::uint32_t>(bf16) << 16;
        float x;
        std::memcpy(&x, &bits, 4);
        return normal(x);
    }
};

}  // namespace
