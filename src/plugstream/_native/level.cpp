#include "level.hpp"

namespace plugstream {

bool available(Level level) {
    switch (level) {
        case Level::baseline:
            return true;
#ifdef PLUGSTREAM_HAS_avx512
        case Level::avx2:  // with fused multiply-adds, which all but the very first such machines have
            return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
        case Level::avx512:
            return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                   __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
#endif
        default:
            return false;
    }
}

}  // namespace plugstream
