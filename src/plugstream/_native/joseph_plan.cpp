// In double precision, and step by step what models/ct_lines.py does, so that both choose the same axis for rays along
// a diagonal. On row r a ray is at place + slope (r - r_0) or, of a source at (S_r, S_x),
// S_x + (place - S_x) (r - S_r) / (r_0 - S_r): a line in r either way, whose coefficients the rays of a group share.
#include "joseph_plan.hpp"

#include <algorithm>
#include <cmath>

namespace plugstream::joseph {
namespace {

}  // namespace

bool Plan::uses(int axis) const {
    return std::any_of(groups_.begin(), groups_.end(), [=](const Group& group) { return group.axis == axis; });
}

// The row on which a ray's place is told: in the middle of the image, unless the source is near that row.
double Plan::reference(const Grid& grid, int axis) const {
    const double last = static_cast<double>(grid.size[axis] - 1), middle = last / 2;
    if (parallel_) return middle;
    const double far = std::max(last / 2, 1.0);
    if (std::abs(middle - source_[axis]) >= far) return middle;
    return source_[axis] >= middle ? source_[axis] - far : source_[axis] + far;
}

void Plan::find_lines(const Beam& beam, const Grid& grid, const double* vectors) {
    const double *first = vectors, *centre = vectors + 3, *u = vectors + 6;
    const double pixel = std::sqrt(u[0] * u[0] + u[1] * u[1] + u[2] * u[2]);
    double normal[2] = {}, tangent[2] = {u[0] / pixel, u[1] / pixel};
    const bool curved = std::isfinite(beam.curvature);
    if (curved) {
        const double away[2] = {centre[0] - first[0], centre[1] - first[1]};
        const double along = away[0] * tangent[0] + away[1] * tangent[1];
        for (int k = 0; k < 2; ++k) normal[k] = away[k] - along * tangent[k];
        const double length = std::sqrt(normal[0] * normal[0] + normal[1] * normal[1]);
        for (double& part : normal) part /= length;
    }
    for (int axis = 0; axis < 2; ++axis) {
        const int k = 1 - axis;  // vectors have x first
        source_[axis] = (first[k] - grid.origin[axis]) / grid.spacing[axis];
    }
    const double rows[2] = {reference(grid, 0), reference(grid, 1)};
    lines_.resize(beam.columns);
    Line ray{};
    for (long column = 0; column < beam.columns; ++column) {
        const double step = static_cast<double>(column) - static_cast<double>(beam.columns - 1) / 2;
        double point[2], place[2];
        const double turn = curved ? step * pixel / beam.curvature : 0;
        for (int k = 0; k < 2; ++k) {
            if (curved) {
                const double arc = (std::cos(turn) - 1) * normal[k] + std::sin(turn) * tangent[k];
                point[k] = centre[k] + beam.curvature * arc;
            } else {
                point[k] = centre[k] + step * u[k];
            }
        }
        for (int axis = 0; axis < 2; ++axis) place[axis] = (point[1 - axis] - grid.origin[axis]) / grid.spacing[axis];
        if (!beam.parallel || column == 0) {  // the rays of a parallel beam have one way
            double way[2], slope[2];
            for (int k = 0; k < 2; ++k) way[k] = beam.parallel ? first[k] : point[k] - first[k];
            for (int axis = 0; axis < 2; ++axis) slope[axis] = way[1 - axis] / grid.spacing[axis];
            ray.axis = std::abs(slope[1]) > std::abs(slope[0]) ? 1 : 0;
            ray.steep = slope[ray.axis];
            ray.square = way[0] * way[0] + way[1] * way[1];
            ray.step = std::sqrt(ray.square) / std::abs(ray.steep);
            slope_[ray.axis] = slope[1 - ray.axis] / ray.steep;
        }
        ray.along = place[ray.axis];
        ray.place = place[1 - ray.axis] + (rows[ray.axis] - ray.along) * slope_[ray.axis];
        lines_[column] = ray;
    }
}

void Plan::build(const Beam& beam, const Grid& grid, long view, bool inverse) {
    parallel_ = beam.parallel;
    groups_.clear();
    find_lines(beam, grid, beam.vectors + 12 * view);
    bounds_.assign(1, 0);
    if (!parallel_) {
        double way = 0;  // places rise or fall within a group
        for (long ray = 1; ray < beam.columns; ++ray) {
            const double next = lines_[ray].place - lines_[ray - 1].place;
            const bool apart = lines_[ray].axis != lines_[ray - 1].axis || next * way < 0;
            if (apart) bounds_.push_back(ray);
            if (apart || way == 0) way = apart ? 0 : next;
        }
    }
    bounds_.push_back(beam.columns);
    long count = 0;
    for (size_t k = 0; k + 1 < bounds_.size(); ++k) count += room(grid, bounds_[k], bounds_[k + 1], inverse);
    numbers_.resize(count);
    float* numbers = numbers_.data();
    for (size_t k = 0; k + 1 < bounds_.size(); ++k) {
        add_group(grid, bounds_[k], bounds_[k + 1], inverse, numbers);
        numbers += room(grid, bounds_[k], bounds_[k + 1], inverse);
    }
}

long Plan::bytes() const {
    return static_cast<long>(numbers_.capacity() * sizeof(float) + lines_.capacity() * sizeof(Line));
}

// How many numbers a group has: those of its rows, its rays and their steps, and for the adjoint the table and the data.
long Plan::room(const Grid& grid, long first, long end, bool inverse) const {
    const long rows = grid.size[lines_[first].axis], wide = rounded(end - first), padded = wide + 2 * margin;
    return 2 * rows + padded + wide + (inverse ? entries(first, end) + padded : 0);
}

void Plan::add_group(const Grid& grid, long first, long end, bool inverse, float* numbers) {
    const int axis = lines_[first].axis;
    const long rows = grid.size[axis], middle = grid.size[1 - axis] / 2, count = end - first, wide = rounded(count);
    const long entries = this->entries(first, end), table = inverse ? entries : 0;
    float *scale = numbers, *shift = scale + rows, *place = shift + rows + margin, *step = place + wide + margin;
    float *found = step + wide, *data = found + table + margin;

    const double row = reference(grid, axis);
    // Places are counted from the middle pixel, and half a pixel too low.
    const double centre = static_cast<double>(middle);
    for (long r = 0; r < rows; ++r) {
        const double off = static_cast<double>(r) - row;
        const double t = parallel_ ? 1 : 1 + off / (row - source_[axis]);
        scale[r] = static_cast<float>(t);
        shift[r] = static_cast<float>(
            (parallel_ ? slope_[axis] * off : (1 - t) * (source_[1 - axis] - centre)) - 0.5);
    }
    for (long k = -margin; k < wide + margin; ++k) {
        const long ray = std::clamp(first + k, first, end - 1);
        place[k] = static_cast<float>(lines_[ray].place - centre);
        if (k >= 0 && k < wide) step[k] = static_cast<float>(lines_[ray].step);
    }
    Group group{axis, first, {scale, shift, place, count, 0, 0, found, static_cast<int>(entries), 0, 0}, step, data};
    if (inverse && count > 1) {
        double least = std::abs(lines_[first + 1].place - lines_[first].place), bend = 0;
        for (long ray = first + 1; ray + 1 < end && !parallel_; ++ray) {
            const double before = std::abs(lines_[ray].place - lines_[ray - 1].place);
            const double after = std::abs(lines_[ray + 1].place - lines_[ray].place);
            least = std::min({least, before, after});
            bend = std::max(bend, std::abs(after - before));
        }
        group.fan.least = static_cast<float>(least);
        group.fan.bend = static_cast<float>(bend);
        const double low = std::min(lines_[first].place, lines_[end - 1].place) - centre;
        const double high = std::max(lines_[first].place, lines_[end - 1].place) - centre;
        group.fan.low = static_cast<float>(low);
        if (high > low) group.fan.rate = static_cast<float>(static_cast<double>(entries - 1) / (high - low));
        // The ray at each entry's place, by a walk along both.
        const bool rising = lines_[end - 1].place >= lines_[first].place;
        auto at = [&](long k) { return lines_[rising ? first + k : end - 1 - k].place - centre; };
        for (long entry = 0, k = 0; entry < entries; ++entry) {
            const double x = low + (high - low) * static_cast<double>(entry) / static_cast<double>(entries - 1);
            while (k + 2 < count && at(k + 1) < x) ++k;
            const double gap = at(k + 1) - at(k);
            const double ray = static_cast<double>(k) + (gap > 0 ? (x - at(k)) / gap : 0);
            found[entry] = static_cast<float>(rising ? ray : static_cast<double>(count - 1) - ray);
        }
    }
    groups_.push_back(group);
}

}  // namespace plugstream::joseph
