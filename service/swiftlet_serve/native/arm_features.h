// The extensions of ARM that the processor and the system support.

#pragma once

#ifdef __APPLE__
#include <sys/sysctl.h>
#else
#include <asm/hwcap.h>
#include <sys/auxv.h>
#ifndef HWCAP2_I8MM  // older headers of Linux
#define HWCAP2_I8MM (1 << 13)
#endif
#endif

#include <cstddef>

namespace {

#ifdef __APPLE__
inline bool has(const char* name) {
    int value = 0;
    std::size_t size = sizeof value;
    return !sysctlbyname(name, &value, &size, nullptr, 0) && value;
}
[[maybe_unused]] inline bool has_dot_products() { return has("hw.optional.arm.FEAT_DotProd"); }
[[maybe_unused]] inline bool has_matrix_products() { return has("hw.optional.arm.FEAT_I8MM"); }
#else
[[maybe_unused]] inline bool has_dot_products() { return getauxval(AT_HWCAP) & HWCAP_ASIMDDP; }
[[maybe_unused]] inline bool has_matrix_products() { return getauxval(AT_HWCAP2) & HWCAP2_I8MM; }
#endif

}  // namespace
