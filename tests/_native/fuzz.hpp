// What the programs of `make asan` share: random numbers, and the loop over seeds.
#pragma once

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <random>
#include <thread>
#include <vector>

#include "level.hpp"

namespace fuzz {

struct Random : std::mt19937 {
    using std::mt19937::mt19937;

    int between(int low, int high) { return low + static_cast<int>((*this)() % (high - low + 1)); }

    template <class T>
    T one_of(const std::vector<T>& choices) { return choices[(*this)() % choices.size()]; }
    template <class T>
    T one_of(std::initializer_list<T> choices) { return choices.begin()[(*this)() % choices.size()]; }

    // Exactly as many as asked for, on the heap, so that one read too many is seen.
    template <class T = float>
    std::vector<T> numbers(long count, T scale) {
        std::normal_distribution<T> normal(0, scale);
        std::vector<T> out(count);
        for (T& value : out) value = normal(*this);
        return out;
    }
};

inline const std::vector<plugstream::Level>& levels() {
    static const std::vector<plugstream::Level> all = [] {
        using plugstream::Level;
        std::vector<Level> found;
        for (Level level : {Level::avx512, Level::avx2, Level::baseline})
            if (plugstream::available(level)) found.push_back(level);
        return found;
    }();
    return all;
}

// Equal up to `apart`, or both not numbers.
template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b, T apart = 0) {
    for (size_t k = 0; k < a.size(); ++k)
        if (a[k] != b[k] && !(std::abs(a[k] - b[k]) <= apart) && !(std::isnan(a[k]) && std::isnan(b[k]))) return false;
    return true;
}

// Tries as many seeds as the command line says; the exit status.
template <class Try>
int run(int argc, char** argv, const char* name, Try&& try_one) {
    const int count = argc > 1 ? std::atoi(argv[1]) : 100;
    for (int seed = 0; seed < count; ++seed)
        if (Random random(seed); !try_one(random)) {
            std::printf("%s, seed %d: not what was expected\n", name, seed);
            return 1;
        }
    // Helpers that came late are gone then, so that nothing of theirs counts as leaked.
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    std::printf("%d random calls of %s: nothing found\n", count, name);
    return 0;
}

}  // namespace fuzz
