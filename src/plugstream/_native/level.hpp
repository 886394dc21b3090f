// The instruction sets that the inner loops are compiled for: one of them, PLUGSTREAM_ONE_LEVEL, or all that the kind of
// processor may have. The files that are compiled for each include this, so it has no inline function: one compiled for
// AVX-512 could be the copy that the linker keeps for everyone.
#pragma once

namespace plugstream {

enum class Level { baseline, avx2, avx512 };

// Whether this build has the level and this machine can run it.
bool available(Level level);

}  // namespace plugstream

// The same declarations in the namespace of every level.
#define PLUGSTREAM_IN_EVERY_LEVEL(...) \
    namespace baseline {               \
    __VA_ARGS__                        \
    }                                  \
    namespace avx2 {                   \
    __VA_ARGS__                        \
    }                                  \
    namespace avx512 {                 \
    __VA_ARGS__                        \
    }

// That one of baseline::name, avx2::name and avx512::name which is for an available level.
#ifdef PLUGSTREAM_ONE_LEVEL
#define PLUGSTREAM_AT_LEVEL(level, name) ((void)(level), PLUGSTREAM_ONE_LEVEL::name)
#else
#define PLUGSTREAM_AT_LEVEL(level, name) \
    ((level) == Level::avx512 ? avx512::name : (level) == Level::avx2 ? avx2::name : baseline::name)
#endif
