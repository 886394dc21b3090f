// Which rays of a view run along which axis of the image, and where.
#pragma once

#include <vector>

#include "joseph.hpp"
#include "joseph_rows.hpp"
#include "memory.hpp"

namespace plugstream::joseph {

// So many numbers as whole blocks.
constexpr long rounded(long length) { return (length + block - 1) / block * block; }

// Neighbouring rays that advance along one axis: `fan` points into the view's numbers.
struct Group {
    int axis;  // 0: from row to row, 1: from column to column
    long first;
    Fan fan;
    const float* step;  // metres from one row to the next, of each ray
    float* data;        // for the adjoint: the rays' data times their step, between margins of zeros
};

// A ray by itself: its axis, where it crosses the reference row of that axis, and the metres from row to row; where its
// pixel is along the axis, and the squared length and the rows of its way from the source (or of its direction).
struct Line {
    int axis;
    double place, step, along, square, steep;
};

// What is known of a view before any image: its rays in groups.
class Plan {
  public:
    // inverse: whether the adjoint is wanted, which needs a little more.
    void build(const Beam& beam, const Grid& grid, long view, bool inverse);
    const std::vector<Group>& groups() const { return groups_; }
    const Line& line(long column) const { return lines_[column]; }
    double source(int axis) const { return source_[axis]; }
    bool uses(int axis) const;
    long bytes() const;  // that it keeps for the next view

  private:
    void find_lines(const Beam& beam, const Grid& grid, const double* vectors);
    long room(const Grid& grid, long first, long end, bool inverse) const;
    void add_group(const Grid& grid, long first, long end, bool inverse, float* numbers);
    double reference(const Grid& grid, int axis) const;
    // Of the table from places to rays: two are all that rays of equal distance need.
    long entries(long first, long end) const { return parallel_ ? 2 : 2 * (end - first); }

    bool parallel_ = false;
    double source_[2] = {}, slope_[2] = {};  // of the source in pixels, or of the rays of a parallel beam
    std::vector<Line> lines_;
    std::vector<Group> groups_;
    std::vector<float> numbers_;
    std::vector<long> bounds_;  // where groups begin, and the number of rays
};

// Plans of calls that are over, which have the memory that the next one needs.
Pool<std::vector<Plan>>& plans();

}  // namespace plugstream::joseph
