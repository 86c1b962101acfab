#define PILOTFISH_AVX_VNNI
#include "simd_avx2.hpp"

#include <cmath>

#include "kernels_impl.hpp"

namespace pilotfish {
extern const Kernels kernels_avx2_vnni;
const Kernels kernels_avx2_vnni = kKernels;
}  // namespace pilotfish
