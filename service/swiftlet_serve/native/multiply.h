// Matrix products in int8, on tiles or on vectors.

#pragma once

#include "product.h"
#include "tiles.h"

namespace {

// Multiplies rows of x with m, into out (rows, stride).
template <class A = Isa>
void multiply(const QuantisedRows& x, int rows, const Matrix& m, float* out, int stride, const Epilogue& epilogue = {}) {
    if constexpr (A::tiles)
        if (on_tiles && m.k % tile_inputs == 0) return multiply_on_tiles(x, rows, m, out, stride, epilogue);
    multiply_on_vectors(x, rows, m, out, stride, epilogue);
}

}  // namespace
