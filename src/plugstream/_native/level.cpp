#include "level.hpp"

namespace plugstream {

bool available(Level level) {
#ifdef PLUGSTREAM_ONE_LEVEL
    if (level != Level::PLUGSTREAM_ONE_LEVEL) return false;
#endif
#ifdef __x86_64__
    if (level == Level::avx2)  // with fused multiply-adds, which all but the very first such machines have
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (level == Level::avx512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
#endif
    return level == Level::baseline;
}

}  // namespace plugstream
