// For instruction sets without tiles.

#pragma once

namespace {

struct NoTiles {
    static constexpr bool tiles = false;

    static bool permitted() { return true; }

    struct InUse {
        ~InUse() {}
    };
};

}  // namespace
