#include "kernels.hpp"

#include <array>
#include <cstring>

#ifdef PILOTFISH_X86
#include <cpuid.h>
#endif
#if defined(PILOTFISH_NEON) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace pilotfish {

#ifdef PILOTFISH_X86
extern const Kernels kernels_avx512, kernels_avx2, kernels_avx2_vnni;
#endif
#ifdef PILOTFISH_NEON
extern const Kernels kernels_neon;
#endif
extern const Kernels kernels_portable;

namespace {

#ifdef PILOTFISH_X86
// gcc 12 has no name for this one: leaf 7, sub-leaf 1, bit 4 of eax.
bool has_avx_vnni() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax >> 4 & 1) != 0;
}
#endif

#ifdef PILOTFISH_NEON
bool has_dot_product() {
#ifdef __linux__
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
  return true;  // every Apple processor since the first with 64-bit macOS
#endif
}
#endif

// Fastest first; null after the last.
std::array<const Kernels*, 6> detect() {
  std::array<const Kernels*, 6> found = {};
  const Kernels** next = found.data();
#ifdef PILOTFISH_X86
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("f16c");
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vnni")) {
    *next++ = &kernels_avx512;
  }
  if (avx2 && has_avx_vnni()) *next++ = &kernels_avx2_vnni;
  if (avx2) *next++ = &kernels_avx2;
#endif
#ifdef PILOTFISH_NEON
  if (has_dot_product()) *next++ = &kernels_neon;
#endif
  *next = &kernels_portable;
  return found;
}

}  // namespace

const Kernels* const* available_kernels() {
  // models are loaded without the interpreter's lock: the first two may come at once
  static const std::array<const Kernels*, 6> found = detect();
  return found.data();
}

const Kernels* find_kernels(const char* name) {
  for (const Kernels* const* k = available_kernels(); *k != nullptr; k++) {
    if (std::strcmp((*k)->name, name) == 0) return *k;
  }
  return nullptr;
}

}  // namespace pilotfish
