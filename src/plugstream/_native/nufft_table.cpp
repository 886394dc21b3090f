// Rows of a sparse matrix are claimed some at a time; the order within a row is fixed, so threads change no bit.
#include <algorithm>
#include <atomic>
#include <memory>

#include "nufft.hpp"
#include "team.hpp"

namespace plugstream::nufft {
namespace {

constexpr long rows_at_once = 256;  // rows that are claimed at once

template <class T>
class Product {
  public:
    Product(const Table<T>& table, const T* vectors, T* out) : table_(table), vectors_(vectors), out_(out) {}

    void work(int) {
        const long blocks = (table_.rows + rows_at_once - 1) / rows_at_once, count = table_.images * blocks;
        for (long part; (part = next_.fetch_add(1, std::memory_order_relaxed)) < count;) {
            const long image = part / blocks, first = part % blocks * rows_at_once;
            const T* vector = vectors_ + 2 * image * table_.columns;
            for (long row = first; row < std::min(first + rows_at_once, table_.rows); ++row)
                table_.column_sign == nullptr ? sum<false>(row, vector, out_ + 2 * (image * table_.rows + row))
                                              : sum<true>(row, vector, out_ + 2 * (image * table_.rows + row));
            done_.fetch_add(1, std::memory_order_release);
        }
        wait_until([&] { return done_.load(std::memory_order_acquire) == count; });
    }

  private:
    template <bool conjugated>
    void sum(long row, const T* vector, T* out) const {
        constexpr int chains = 4;  // of sums that do not wait for each other
        T real[chains] = {}, imaginary[chains] = {};
        const int end = table_.starts[row + 1];
        auto add = [&](int at, int chain) {
            const long column = table_.index[at];
            const T value = table_.values[at];
            real[chain] += value * vector[2 * column];
            imaginary[chain] += (conjugated ? value * table_.column_sign[column] : value) * vector[2 * column + 1];
        };
        int at = table_.starts[row];
        for (; at + chains <= end; at += chains)
            for (int chain = 0; chain < chains; ++chain) add(at + chain, chain);
        for (int chain = 0; at < end; ++at, ++chain) add(at, chain);
        out[0] = (real[0] + real[1]) + (real[2] + real[3]);
        const T other = (imaginary[0] + imaginary[1]) + (imaginary[2] + imaginary[3]);
        out[1] = table_.row_sign == nullptr ? other : table_.row_sign[row] * other;
    }

    const Table<T> table_;
    const T* vectors_;
    T* out_;
    std::atomic<long> next_ = 0, done_ = 0;
};

}  // namespace

template <class T>
const char* fault(const Table<T>& table, long entries) {
    for (long row = 0; row < table.rows; ++row)
        if (table.starts[row] < 0 || table.starts[row] > table.starts[row + 1]) return "starts must not fall";
    if (table.starts[table.rows] > entries) return "starts must end with the number of entries";
    return nullptr;
}

template <class T>
void multiply(const Table<T>& table, const T* vectors, T* out, int threads) {
    run_team(std::clamp(threads, 1, 256), std::make_shared<Product<T>>(table, vectors, out));
}

template const char* fault<float>(const Table<float>&, long);
template const char* fault<double>(const Table<double>&, long);
template void multiply<float>(const Table<float>&, const float*, float*, int);
template void multiply<double>(const Table<double>&, const double*, double*, int);

}  // namespace plugstream::nufft
